# MySQL 9 of Debian's unstable suite, for tests: stable Debian packages no MySQL. root has no password and may come
# from every machine that reaches the port, so publish it on loopback only. From the root of the repository:
#
#     docker build -f configs/docker/servers/mysql.Dockerfile -t foqs-mysql .
#
# BASE is any image of Debian 12 or later. Arguments of the container are options of mysqld.

ARG BASE=debian:bookworm-slim
FROM $BASE
# false accepts a mirror that is a snapshot of the past.
ARG CHECK_VALID_UNTIL=true
COPY tools/mysql9.sh /usr/local/bin/mysql9
RUN echo "Acquire::Check-Valid-Until \"$CHECK_VALID_UNTIL\";" >/etc/apt/apt.conf.d/90valid-until \
    && bash /usr/local/bin/mysql9 \
    && useradd --system --user-group --no-create-home mysql \
    && install -d -o mysql -g mysql /var/lib/mysql
COPY configs/docker/servers/mysql.sh /usr/local/bin/start
USER mysql
VOLUME /var/lib/mysql
EXPOSE 3306
ENTRYPOINT ["sh", "/usr/local/bin/start"]
