# MariaDB of Debian's packages, for tests and for compose.yml. root has no password and may come from every machine
# that reaches the port, so publish it on loopback only. From the root of the repository:
#
#     docker build -f configs/docker/servers/mariadb.Dockerfile -t foqs-mariadb .
#
# BASE is any image of Debian 12 or later. Arguments of the container are options of mariadbd.

ARG BASE=debian:bookworm-slim
FROM $BASE
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mariadb-server \
    && rm -rf /var/lib/apt/lists/* /var/lib/mysql/* \
    && chown mysql: /var/lib/mysql
COPY configs/docker/servers/mariadb.sh /usr/local/bin/start
USER mysql
VOLUME /var/lib/mysql
EXPOSE 3306
ENTRYPOINT ["sh", "/usr/local/bin/start"]
