#!/bin/bash
# run.sh JOB OUT: write the savepoint of the middle of HalfJob or SessionJob, and what was emitted; FLINK_LIB is the
# folder of Flink's jars, for instance that of the package apache-flink-libraries of PyPI.
set -e
cd "$(dirname "$0")"
jars=$(ls "$FLINK_LIB"/*.jar | tr '\n' ':')
classes=$(mktemp -d)
javac -nowarn -cp "$jars" -d "$classes" "$1.java"
opens=""
for package in lang net io nio lang.reflect text time util util.concurrent util.concurrent.atomic util.concurrent.locks; do
  opens="$opens --add-opens=java.base/java.$package=ALL-UNNAMED"
done
exec java -Xmx1500m $opens --add-opens=java.base/sun.nio.ch=ALL-UNNAMED -cp "$classes:$jars" "$1" "$2"
