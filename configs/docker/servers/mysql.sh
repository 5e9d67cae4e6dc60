#!/bin/sh
# Creates the first data if the volume has none, then becomes mysqld, whose options are the arguments.
set -eu
server=/var/cache/foqs/mysql9/mysqld
data=/var/lib/mysql/data
if [ ! -d "$data" ]; then
    # A folder that an interrupted start left is not used.
    rm -rf "$data.new"
    "$server" --initialize-insecure --datadir="$data.new"
    mv "$data.new" "$data"
fi
# The server runs these at each start, before it listens.
cat >/tmp/first.sql <<'SQL'
CREATE USER IF NOT EXISTS root@'%' IDENTIFIED BY '';
GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS foqs;
SQL
exec "$server" --datadir="$data" --tmpdir=/tmp --socket=/tmp/mysql.sock --init-file=/tmp/first.sql \
    --skip-name-resolve "$@"
