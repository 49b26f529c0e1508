{{/*
Kubernetes Jobs that run a job of Penstock once: alone in a pod, with their state on a volume (`penstock run`), or by handing it to the
pools (`penstock submit`). Both go on where they stopped when their command is repeated, and pay nothing twice.
*/}}

{{/* All enabled jobs as JSON, each complete: jobDefaults, itself, and what is derived of them (name, claim, onSpot, grace, drain). */}}
{{- define "penstock.jobs" -}}
{{- $root := . -}}
{{- $jobs := dict -}}
{{- range $name, $given := .Values.jobs -}}
{{- if ne (get $given "enabled" | toString) "false" -}}
{{- $job := deepCopy $root.Values.jobDefaults -}}
{{- include "penstock.overlay" (dict "into" $job "from" (deepCopy $given)) -}}
{{- $onSpot := and $job.spot (ne $root.Values.spot.provider "") -}}
{{- $grace := int64 (ternary (include "penstock.notice" $root) "120" $onSpot) -}}
{{- if not (kindIs "invalid" (index $job "terminationGracePeriodSeconds")) -}}
{{- $grace = int64 $job.terminationGracePeriodSeconds -}}
{{- end -}}
{{- $claim := printf "%s-%s-state" (include "penstock.fullname" $root) $name -}}
{{- /* A run ends its workers and its Redis after the drain: END_S of ending.py. */}}
{{- $derived := dict "name" $name "alone" (eq $job.mode "alone") "onSpot" $onSpot "grace" $grace "drain" (max 2 (sub $grace 10)) "claim" (default $claim $job.volume.existingClaim) -}}
{{- /* The fields of a pool that its place on nodes is made of. */}}
{{- $_ := set $jobs $name (merge $derived $job (dict "gpu" (dict "count" 0) "spreadZones" false)) -}}
{{- end -}}
{{- end -}}
{{- toJson $jobs -}}
{{- end -}}

{{/* "true" where something of the release needs a Redis and a database: all but jobs that run alone. */}}
{{- define "penstock.needsStores" -}}
{{- $alone := list -}}
{{- range include "penstock.jobs" . | fromJson -}}
{{- $alone = append $alone .alone -}}
{{- end -}}
{{- if or (include "penstock.pools" . | fromJson) .Values.gateway.enabled .Values.flower.enabled (has false $alone) (not $alone) -}}true{{- end -}}
{{- end -}}

{{/* The job as a spec file, of `dict "root" $ "job" job`. Its key is the job's name, so that the same job is found again. */}}
{{- define "penstock.jobFile" -}}
{{- toPrettyJson (merge (dict) .job.spec (dict "job" .job.name)) -}}
{{- end -}}

{{- define "penstock.jobArgs" -}}
{{- if .alone -}}
{{- $folder := printf "/penstock/%s" .name -}}
{{- toJson (list "run" "/job/job.json" "--out" (default (printf "%s/out" $folder) .out) "--state" (printf "%s/state" $folder) "--wait" "--no-progress") -}}
{{- else -}}
{{- toJson (list "submit" "/job/job.json") -}}
{{- end -}}
{{- end -}}

{{/* The pod of `dict "root" $ "job" job "config" name`. */}}
{{- define "penstock.jobPod" -}}
{{- $job := .job -}}
metadata:
  labels:
    {{- include "penstock.podLabels" .root | nindent 4 }}
    app.kubernetes.io/component: job
    penstock/job: {{ $job.name }}
  annotations:
    checksum/config: {{ include "penstock.toml" .root | sha256sum }}
    {{- with $job.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "penstock.podBasics" .root | nindent 2 }}
  serviceAccountName: {{ include "penstock.serviceAccountName" .root }}
  {{- include "penstock.podSecurity" (dict "user" .root.Values.podSecurity.runAsUser "group" .root.Values.podSecurity.fsGroup) | nindent 2 }}
  {{- with include "penstock.workerNodes" (dict "root" .root "pool" $job) | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  restartPolicy: Never
  terminationGracePeriodSeconds: {{ int64 $job.grace }}
  containers:
    - name: penstock
      {{- $image := deepCopy .root.Values.image }}
      {{- include "penstock.overlay" (dict "into" $image "from" $job.image) }}
      image: {{ include "penstock.image" (dict "root" .root "image" $image) }}
      imagePullPolicy: {{ $image.pullPolicy }}
      args: {{ include "penstock.jobArgs" $job }}
      env:
        {{- if $job.alone }}
        - {name: PENSTOCK_CONFIG, value: /etc/penstock/penstock.toml}
        - {name: PENSTOCK_DRAIN_SECONDS, value: {{ int64 $job.drain | quote }}}
        {{- include "penstock.providerKeysEnv" .root | trim | nindent 8 }}
        {{- include "penstock.tracingEnv" .root | trim | nindent 8 }}
        {{- include "penstock.otlpEnv" .root | trim | nindent 8 }}
        {{- else }}
        {{- include "penstock.storesEnv" .root | nindent 8 }}
        {{- end }}
        - {name: HOME, value: /tmp}
        {{- include "penstock.ownEnv" $job | trim | nindent 8 }}
      {{- with $job.envFrom }}
      envFrom:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "penstock.containerSecurity" .root | nindent 6 }}
      resources:
        {{- toYaml $job.resources | nindent 8 }}
      volumeMounts:
        - {name: config, mountPath: /etc/penstock, readOnly: true}
        - {name: job, mountPath: /job, readOnly: true}
        - {name: tmp, mountPath: /tmp}
        {{- if $job.alone }}
        - {name: work, mountPath: /penstock}
        {{- end }}
        {{- with $job.volumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: config
      configMap: {name: {{ include "penstock.fullname" .root }}}
    - name: job
      configMap: {name: {{ .config }}}
    - name: tmp
      emptyDir: {sizeLimit: {{ $job.tmpSize | quote }}}
    {{- if $job.alone }}
    - name: work
      persistentVolumeClaim: {claimName: {{ $job.claim | quote }}}
    {{- end }}
    {{- with $job.volumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}
