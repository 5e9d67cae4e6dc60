# One ZooKeeper of Debian's packages, for tests and for compose.yml. Every machine that reaches the port may read and
# write it, so publish it on loopback only. From the root of the repository:
#
#     docker build -f configs/docker/servers/zookeeper.Dockerfile -t foqs-zookeeper .
#
# BASE is any image of Debian 12 or later. Arguments of the container are lines of zoo.cfg, such as tickTime=500.

ARG BASE=debian:bookworm-slim
FROM $BASE
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libzookeeper-java default-jre-headless \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --user-group --no-create-home zookeeper \
    && install -d -o zookeeper -g zookeeper /var/lib/zookeeper
COPY configs/docker/servers/zookeeper.sh /usr/local/bin/start
USER zookeeper
VOLUME /var/lib/zookeeper
EXPOSE 2181
ENTRYPOINT ["sh", "/usr/local/bin/start"]
