{{/* What cannot work, each with its fix: one per line. validations.yaml fails with all of them at once. */}}

{{- define "penstock.refuseStores" -}}
{{- if include "penstock.needsStores" . }}
{{- if and .Values.redis.enabled .Values.broker.existingSecret }}
- redis.enabled is true and broker.existingSecret is {{ .Values.broker.existingSecret | quote }}: two brokers; unset one of them
{{- else if not (or .Values.redis.enabled .Values.broker.existingSecret) }}
- no broker: set broker.existingSecret to a Secret with Redis' URL (kubectl create secret generic penstock-broker --from-literal=url=rediss://…), or redis.enabled=true to evaluate
{{- end }}
{{- if and .Values.postgres.enabled .Values.database.existingSecret }}
- postgres.enabled is true and database.existingSecret is {{ .Values.database.existingSecret | quote }}: two databases; unset one of them
{{- else if not (or .Values.postgres.enabled .Values.database.existingSecret) }}
- no database: set database.existingSecret to a Secret with PostgreSQL's URL (kubectl create secret generic penstock-database --from-literal=url=postgresql+psycopg://…), or postgres.enabled=true to evaluate
{{- end }}
{{- end }}
{{- if and .Values.flower.enabled (not .Values.flower.auth.existingSecret) }}
- flower.enabled is true without a password, and Flower shows what documents say; set flower.auth.existingSecret to a Secret with {{ .Values.flower.auth.key }}=user:password
{{- end }}
{{- end -}}

{{- define "penstock.refuseSettings" -}}
{{- $instead := dict
  "redis_url" "broker.existingSecret" "broker_url" "rabbitmq.existingSecret" "database_url" "database.existingSecret" "providers" "providers" "lane" "workerPools.<name>.kind"
  "concurrency" "workerPools.<name>.concurrency" "drain_seconds" "workerPools.<name>.drainSeconds" "control" "a pool of kind control"
  "probe_dir" "nothing: the chart sets it" "metrics_host" "nothing: the chart sets it" "metrics_port" "metrics.port"
  "gateway" "gateway.files and gateway.settings" "trace_share" "tracing.share" "spot_notices" "spot.notices"
}}
{{- range $name, $fix := $instead }}
{{- if hasKey $.Values.settings $name }}
- settings.{{ $name }} would be overruled; use {{ $fix }}
{{- end }}
{{- range $pool, $values := $.Values.workerPools }}
{{- if hasKey (default dict $values.settings) $name }}
- workerPools.{{ $pool }}.settings.{{ $name }} would be set twice; use {{ $fix }}
{{- end }}
{{- end }}
{{- end }}
{{- range $pool, $values := .Values.workerPools }}
{{- range $name, $_ := $values.env }}
{{- if hasPrefix "PENSTOCK_" $name }}
{{- $setting := $name | trimPrefix "PENSTOCK_" | lower }}
- workerPools.{{ $pool }}.env.{{ $name }} is a setting; use {{ get $instead $setting | default (printf "workerPools.%s.settings.%s" $pool $setting) }}
{{- end }}
{{- end }}
{{- end }}
{{- if and (eq .Values.spot.provider "custom") (not (and .Values.spot.custom.labelKey .Values.spot.custom.labelValue)) }}
- spot.provider is custom, but nothing says which nodes are spot; set spot.custom.labelKey and spot.custom.labelValue
{{- end }}
{{- if and .Values.spot.notices (not .Values.spot.provider) }}
- spot.notices is {{ .Values.spot.notices }}, but no pool runs on spot nodes; set spot.provider (gke, eks, aks, karpenter or custom), or leave spot.notices empty
{{- end }}
{{- end -}}

{{- define "penstock.refuseGateway" -}}
{{- if .Values.gateway.enabled }}
{{- if not (regexMatch "^(s3|gs|az)://" .Values.gateway.files) }}
- gateway.files is {{ .Values.gateway.files | quote }}: workers and control read what callers upload, so it must be a bucket that all pods reach; set gateway.files=s3://bucket/prefix (gs://, az://)
{{- end }}
{{- $files := printf "%s/" (trimSuffix "/" .Values.gateway.files) }}
{{- range $root := .Values.settings.source_roots }}
{{- $prefix := printf "%s/" (trimSuffix "/" $root) }}
{{- if or (hasPrefix $prefix $files) (hasPrefix $files $prefix) }}
- settings.source_roots has {{ $root | quote }}, and gateway.files is {{ $.Values.gateway.files | quote }}: jobs of one tenant could read what others upload; give them prefixes that do not hold each other
{{- end }}
{{- end }}
{{- if and .Values.networkPolicy.gatewayFromAnywhere .Values.networkPolicy.gatewayFrom }}
- networkPolicy.gatewayFromAnywhere lets all in, and networkPolicy.gatewayFrom names some; set one of them
{{- end }}
{{- if and .Values.gateway.ingress.enabled (not .Values.gateway.ingress.host) }}
- gateway.ingress.enabled is true without a name; set gateway.ingress.host
{{- end }}
{{- if hasKey (include "penstock.pools" . | fromJson) "gateway" }}
- workerPools.gateway: the Deployment of the HTTP doors has that name; rename the pool
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.refuseTracing" -}}
{{- if and .Values.tracing.share (not .Values.tracing.endpoint) }}
- tracing.share is {{ .Values.tracing.share }}, but no collector takes the traces; set tracing.endpoint to a collector's address (http://collector.monitoring:4318)
{{- end }}
{{- end -}}

{{- define "penstock.refuseMetrics" -}}
{{- if and .Values.metrics.otlp.enabled (not (include "penstock.metricsCollector" .)) }}
- metrics.otlp.enabled is true, but no collector takes the metrics; set metrics.otlp.endpoint to a collector's address (http://collector.monitoring:4318)
{{- end }}
{{- end -}}

{{- define "penstock.refuseCluster" -}}
{{- if .Values.checkClusterApis }}
{{- $apis := .Capabilities.APIVersions }}
{{- if and .Values.keda.enabled (not ($apis.Has "keda.sh/v1alpha1/ScaledObject")) }}
- keda.enabled is true, but the cluster knows no ScaledObject; install KEDA (helm install keda kedacore/keda -n keda --create-namespace), or set checkClusterApis=false where charts are rendered offline
{{- end }}
{{- if and .Values.autoscaling.hpa.enabled (not ($apis.Has "external.metrics.k8s.io/v1beta1")) }}
- autoscaling.hpa.enabled is true, but the cluster serves no external metrics; install prometheus-adapter (docs/kubernetes.md), or set checkClusterApis=false where charts are rendered offline
{{- end }}
{{- if and .Values.monitoring.podMonitor.enabled (not ($apis.Has "monitoring.coreos.com/v1/PodMonitor")) }}
- monitoring.podMonitor.enabled is true, but the cluster knows no PodMonitor; install the Prometheus operator, or set checkClusterApis=false where charts are rendered offline
{{- end }}
{{- if and .Values.monitoring.rules.enabled (not ($apis.Has "monitoring.coreos.com/v1/PrometheusRule")) }}
- monitoring.rules.enabled is true, but the cluster knows no PrometheusRule; install the Prometheus operator, or set checkClusterApis=false where charts are rendered offline
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.refuseFleet" -}}
{{- $pools := include "penstock.pools" . | fromJson }}
{{- $kinds := list }}
{{- $scaled := dict }}
{{- if and .Values.keda.enabled .Values.autoscaling.hpa.enabled }}
- keda.enabled and autoscaling.hpa.enabled are both true: two would set the same number; set autoscaling.hpa.enabled=false where the cluster has KEDA, which makes HPAs of its own
{{- end }}
{{- range $name, $pool := $pools }}
{{- if and $pool.scaled $.Values.autoscaling.hpa.enabled $pool.vllm.loraFrom (include "penstock.sharesLane" (dict "pools" $pools "pool" $pool)) }}
- workerPools.{{ $name }}.vllm.loraFrom: beside another pool of its kind no metric says how much waits for adapters that workers find; set keda.enabled=true in place of autoscaling.hpa.enabled, or workerPools.{{ $name }}.keda.enabled=false and replicas
{{- end }}
{{- $kinds = append $kinds $pool.kind }}
{{- if and $pool.scaled (ne $pool.kind "control") }}
{{- $queue := (include "penstock.triggers" $pool | fromJson).inflight | trimPrefix "unacked." }}
{{- with get $scaled $queue }}
- workerPools.{{ . }} and workerPools.{{ $name }} both scale on the queue penstock.{{ $queue }}: each would grow for all of it; set keda.enabled=false and replicas on one, as the fixed base
{{- end }}
{{- $_ := set $scaled $queue $name }}
{{- end }}
{{- end }}
{{- include "penstock.refuseSharedNames" $pools }}
{{- if not (or $pools (include "penstock.jobs" . | fromJson)) }}
- no pool is enabled; set workerPools.api.enabled=true
{{- end }}
{{- if and (or (has "api" $kinds) (has "batch" $kinds)) (not .Values.providers) }}
- api pools have no provider to call; set providers.<name>.base_url and providers.<name>.apiKey, or workerPools.api.enabled=false
{{- end }}
{{- if and (or (has "api" $kinds) (has "batch" $kinds)) .Values.networkPolicy.enabled (eq .Values.networkPolicy.egress.providers.mode "cidrs") (not .Values.networkPolicy.egress.providers.cidrs) }}
- networkPolicy.egress.providers.mode is cidrs and there are none: no provider could be reached; set networkPolicy.egress.providers.cidrs
{{- end }}
{{- if hasKey $pools "flower" }}
- workerPools.flower: Flower's own Deployment has that name; rename the pool
{{- end }}
{{- end -}}

{{/* Of all pools: a name of two models of one lane would be answered by either. */}}
{{- define "penstock.refuseSharedNames" -}}
{{- $owners := dict }}
{{- range $name, $pool := . }}
{{- if and (has $pool.kind (list "gpu" "embed")) $pool.model.name }}
{{- range include "penstock.modelNames" $pool | fromJsonArray }}
{{- $owner := get $owners (printf "%s %s" $pool.kind .) | default $pool }}
{{- if ne $owner.model.name $pool.model.name }}
- workerPools.{{ $owner.name }} and workerPools.{{ $name }} host different models under the same name {{ . | quote }}: a job that names it would be answered by either; change model.servedNames, or the folder of one
{{- end }}
{{- $_ := set $owners (printf "%s %s" $pool.kind .) $owner }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of one pool: `dict "root" $ "pool" pool "at" "workerPools.name"`. */}}
{{- define "penstock.refuseSpot" -}}
{{- $notice := include "penstock.notice" .root | int64 }}
{{- if ge (int64 .pool.drain) (int64 .pool.grace) }}
- {{ .at }}.drainSeconds is {{ int64 .pool.drain }}, but SIGKILL comes after {{ int64 .pool.grace }} s; set drainSeconds to {{ max 0 (sub (int64 .pool.grace) (int64 .pool.margin)) }} or raise terminationGracePeriodSeconds{{ if .pool.onSpot }} (no further than the notice of {{ $notice }} s){{ end }}
{{- end }}
{{- if and .pool.sidecar (gt (add (int64 .pool.drain) (int64 .pool.vllm.shutdownTimeoutSeconds)) (int64 .pool.grace)) }}
- {{ .at }}: the worker's {{ int64 .pool.drain }} s and vLLM's {{ int64 .pool.vllm.shutdownTimeoutSeconds }} s after it exceed the grace period of {{ int64 .pool.grace }} s; lower vllm.shutdownTimeoutSeconds or drainSeconds
{{- end }}
{{- if .pool.onSpot }}
{{- if gt (int64 .pool.grace) $notice }}
- {{ .at }}.terminationGracePeriodSeconds is {{ int64 .pool.grace }}, but a spot node of {{ .root.Values.spot.provider }} is gone after {{ $notice }} s; lower it, set spot.noticeSeconds if your nodes really give more, or {{ .at }}.spot=false
{{- end }}
{{- if .pool.pdb.enabled }}
- {{ .at }}.pdb.enabled on spot: a budget holds the eviction while the notice runs out; leave it null
{{- end }}
{{- if hasKey .pool.podAnnotations "karpenter.sh/do-not-disrupt" }}
- {{ .at }}.podAnnotations has karpenter.sh/do-not-disrupt: on spot the pod would get no SIGTERM and die with its node; remove it, and set consolidationPolicy: WhenEmpty in the NodePool
{{- end }}
{{- end }}
{{- end -}}

{{/* Of one Job: `dict "root" $ "job" job "at" "jobs.name"`. */}}
{{- define "penstock.refuseJob" -}}
{{- $spec := .job.spec }}
{{- if not (or (hasKey $spec "source") (hasKey $spec "from_job")) }}
- {{ .at }}.spec has no source; set {{ .at }}.spec.source, such as s3://bucket/in.jsonl
{{- end }}
{{- range $field := list "out" "state" "wait" }}
{{- if hasKey (default dict $spec.run) $field }}
- {{ $.at }}.spec.run.{{ $field }} would be overruled; {{ ternary (printf "use %s.out" $.at) "leave it out: the chart sets it" (eq $field "out") }}
{{- end }}
{{- end }}
{{- if hasKey .job.files "job.json" }}
- {{ .at }}.files has a job.json, which is the name of the spec's own file; rename it
{{- end }}
{{- if .job.alone }}
{{- if and .job.out (not (regexMatch "^(s3|gs|az)://" .job.out)) }}
- {{ .at }}.out is {{ .job.out | quote }}, which ends with its pod; set a bucket (s3://bucket/prefix), or leave it empty for the volume
{{- end }}
{{- else }}
{{- if .job.out }}
- {{ .at }}.out is for mode=alone: a fleet writes results where settings.results_url says; leave it empty
{{- end }}
{{- if hasKey .job.files (toString $spec.source) }}
- {{ .at }}.spec.source is a file of this pod, but control pods read the source; put it where they reach it (s3://bucket/in.jsonl), or set {{ .at }}.mode=alone
{{- end }}
{{- end }}
{{- if and .job.alone (le (int64 .job.grace) 10) }}
- {{ .at }}.terminationGracePeriodSeconds is {{ int64 .job.grace }}, but a run needs 10 s to end after its calls; raise it
{{- end }}
{{- if and .job.onSpot (gt (int64 .job.grace) (include "penstock.notice" .root | int64)) }}
- {{ .at }}.terminationGracePeriodSeconds is {{ int64 .job.grace }}, but a spot node of {{ .root.Values.spot.provider }} is gone after {{ include "penstock.notice" .root }} s; lower it, or set {{ .at }}.spot=false
{{- end }}
{{- $stores := "nothing: a run has its own, and a fleet those of the release" }}
{{- $instead := dict
  "drain_seconds" (printf "%s.terminationGracePeriodSeconds" .at) "providers" "providers" "trace_share" "tracing.share" "redis_url" $stores "broker_url" $stores "database_url" $stores
  "lane" (printf "%s.spec.lane" .at) "concurrency" (printf "%s.spec.run.concurrency" .at)
}}
{{- range $name, $fix := $instead }}
{{- if hasKey $.job.settings $name }}
- {{ $.at }}.settings.{{ $name }} would be set twice, or overruled; use {{ $fix }}
{{- end }}
{{- end }}
{{- range $name, $_ := .job.env }}
{{- if hasPrefix "PENSTOCK_" $name }}
- {{ $.at }}.env.{{ $name }} is a setting; use {{ $.at }}.settings.{{ $name | trimPrefix "PENSTOCK_" | lower }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.refuseScaling" -}}
{{- if .pool.scaled }}
{{- $keda := .pool.keda }}
{{- if eq .pool.kind "control" }}
- {{ .at }}.keda.enabled: a control pool has no queue to scale by; set replicas
{{- end }}
{{- if gt (int64 $keda.minReplicas) (int64 $keda.maxReplicas) }}
- {{ .at }}.keda.minReplicas is {{ int64 $keda.minReplicas }}, above maxReplicas, {{ int64 $keda.maxReplicas }}; raise maxReplicas
{{- end }}
{{- if and (eq (int64 $keda.minReplicas) 0) .root.Values.autoscaling.hpa.enabled }}
- {{ .at }}.keda.minReplicas is 0, and no HPA goes to zero or wakes a pool from there (Kubernetes' HPAScaleToZero is alpha); set {{ .at }}.keda.minReplicas=1, or use KEDA
{{- else if eq (int64 $keda.minReplicas) 0 }}
{{- if not (include "penstock.hasControlPool" .root) }}
- {{ .at }}.keda.minReplicas is 0 and no control pool runs: no process would fill the queue that wakes it; set workerPools.control.enabled=true or minReplicas=1
{{- end }}
{{- if and .root.Values.redis.enabled (not .root.Values.redis.persistence.enabled) }}
- {{ .at }}.keda.minReplicas is 0 and the bundled Redis forgets its queue at each restart; set redis.persistence.enabled=true or minReplicas=1
{{- end }}
{{- end }}
{{- if and .root.Values.keda.enabled (not .root.Values.redis.enabled) (not .root.Values.broker.addressKey) }}
- keda.enabled is true, but KEDA reads no URLs; add host:port to the Secret {{ .root.Values.broker.existingSecret }} and name its key in broker.addressKey
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.refuseModel" -}}
{{- if has .pool.kind (list "gpu" "embed") }}
{{- $cache := .pool.modelCache }}
{{- $pods := ternary .pool.keda.maxReplicas .pool.replicas .pool.scaled | int64 }}
{{- $prefetch := .pool.model.prefetch.enabled }}
{{- if not .pool.model.name }}
- {{ .at }}.model.name is empty; name the model to host, such as a folder below {{ $cache.mountPath }}
{{- else if and (eq .pool.kind "embed") (not $prefetch) (contains "/" .pool.model.name) (not (hasPrefix "/" .pool.model.name)) }}
- {{ .at }}.model.name is {{ .pool.model.name | quote }}, but the embed lane downloads nothing; give a folder (/models/…) or set model.prefetch.enabled=true
{{- end }}
{{- if and (eq $cache.type "hostPath") (not $cache.hostPath) }}
- {{ .at }}.modelCache.type is hostPath without one; set modelCache.hostPath
{{- end }}
{{- if and (eq $cache.type "existingClaim") (not $cache.claimName) }}
- {{ .at }}.modelCache.type is existingClaim without one; set modelCache.claimName
{{- end }}
{{- if and (eq $cache.type "pvc") (eq $cache.accessMode "ReadWriteOnce") (or (gt $pods 1) $prefetch) }}
- {{ .at }}: a ReadWriteOnce claim serves one node, and this pool may have {{ $pods }} pods{{ if $prefetch }} and a prefetch job{{ end }}; use modelCache.accessMode=ReadWriteMany or modelCache.type=emptyDir
{{- end }}
{{- if $prefetch }}
{{- if not (has $cache.type (list "pvc" "existingClaim")) }}
- {{ .at }}.model.prefetch.enabled needs a claim that its job and all pods share; set modelCache.type=pvc or existingClaim (ReadWriteMany)
{{- end }}
{{- if not .pool.model.revision }}
- {{ .at }}.model.prefetch.enabled without model.revision would fetch whatever the hub has that day; set the commit
{{- end }}
{{- end }}
{{- if and .pool.sidecar .pool.vllm.loraFrom }}
- {{ .at }}.vllm.loraFrom is for engine=in-process: the sidecar's server finds no adapters by itself
{{- end }}
{{- if and .pool.sidecar .pool.vllm.lora }}
- {{ .at }}.vllm.lora is for engine=in-process; with a sidecar use vllm.args, such as {enable_lora: true, lora_modules: name=/folder}
{{- end }}
{{- end }}
{{- end -}}
