#!/bin/sh
# Writes zoo.cfg, then becomes ZooKeeper. The arguments are lines of zoo.cfg; the last of equal ones wins.
set -eu
printf '%s\n' dataDir=/var/lib/zookeeper clientPort=2181 admin.enableServer=false maxClientCnxns=0 \
    4lw.commands.whitelist=srvr autopurge.snapRetainCount=3 autopurge.purgeInterval=1 "$@" >/tmp/zoo.cfg
cat >/tmp/log4j.properties <<'LOG'
log4j.rootLogger=WARN, out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d %-5p %c: %m%n
LOG
jars=/usr/share/java
exec java -Xmx256m -cp "/tmp:$jars/zookeeper.jar:$jars/slf4j-log4j12.jar:$jars/log4j-1.2.jar" \
    org.apache.zookeeper.server.quorum.QuorumPeerMain /tmp/zoo.cfg
