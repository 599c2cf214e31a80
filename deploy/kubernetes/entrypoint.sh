#!/bin/bash
# Runs the command that a container is given. Spark gives its executors the word `executor` and the rest in variables;
# the pip package of pyspark has the classes for that, and no script of its own that starts them.
set -euo pipefail
[ "${1:-}" = executor ] || exec tini -- "$@"

home=$(python -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
mapfile -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | sed 's/[^=]*=//')
exec tini -- "${JAVA_HOME:+$JAVA_HOME/bin/}java" "${options[@]}" \
  -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" -cp "${SPARK_CONF_DIR:-/opt/spark/conf}:$home/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
