#!/bin/sh
# Creates the first data if the volume has none, then becomes mariadbd, whose options are the arguments.
set -eu
data=/var/lib/mysql/data
if [ ! -d "$data" ]; then
    # A folder that an interrupted start left is not used.
    rm -rf "$data.new"
    mariadb-install-db --no-defaults --datadir="$data.new" --tmpdir=/tmp --skip-test-db \
        --auth-root-authentication-method=normal >/dev/null
    mv "$data.new" "$data"
fi
# The server runs these at each start, before it listens.
cat >/tmp/first.sql <<'SQL'
CREATE USER IF NOT EXISTS root@'%' IDENTIFIED BY '';
GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;
CREATE DATABASE IF NOT EXISTS foqs;
SQL
exec mariadbd --no-defaults --datadir="$data" --tmpdir=/tmp --socket=/tmp/mariadb.sock --init-file=/tmp/first.sql \
    --skip-name-resolve "$@"
