{{/* The pod of one pool: `dict "root" $ "pool" pool`. */}}

{{- define "penstock.workerImages" -}}
{{- $ours := or (has .pool.kind (list "api" "batch" "control")) .pool.sidecar -}}
{{- $engine := ternary .root.Values.embedImage .root.Values.gpuImage (eq .pool.kind "embed") -}}
{{- $image := deepCopy (ternary .root.Values.image $engine $ours) -}}
{{- include "penstock.overlay" (dict "into" $image "from" .pool.image) -}}
{{- toJson $image -}}
{{- end -}}

{{- define "penstock.workerImage" -}}
{{- include "penstock.image" (dict "root" .root "image" (include "penstock.workerImages" . | fromJson)) -}}
{{- end -}}

{{- define "penstock.workerPullPolicy" -}}
{{- (include "penstock.workerImages" . | fromJson).pullPolicy -}}
{{- end -}}

{{/* Arguments after the image's entrypoint, `tini -- penstock`. */}}
{{- define "penstock.workerArgs" -}}
{{- ternary (list "control") (list "worker" "--lane" .kind) (eq .kind "control") | toJson -}}
{{- end -}}

{{/* Asks files, not servers: a Redis outage must not restart the fleet. */}}
{{- define "penstock.workerProbes" -}}
startupProbe:
  exec:
    command: [penstock-probe, started]
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: {{ max 1 (div (int64 .startupSeconds) 5) }}
readinessProbe:
  exec:
    command: [penstock-probe, ready]
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 2
livenessProbe:
  exec:
    command: [penstock-probe, alive, --max-age, {{ int64 .livenessSeconds | quote }}]
  periodSeconds: 30
  timeoutSeconds: 10
  failureThreshold: 2
{{- end -}}

{{- define "penstock.workerContainer" -}}
- name: penstock
  image: {{ include "penstock.workerImage" . }}
  imagePullPolicy: {{ include "penstock.workerPullPolicy" . }}
  args: {{ include "penstock.workerArgs" .pool }}
  env:
    {{- include "penstock.poolEnv" . | trim | nindent 4 }}
  {{- with .pool.envFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - {name: metrics, containerPort: {{ int64 .root.Values.metrics.port }}}
  {{- include "penstock.workerProbes" .pool | nindent 2 }}
  {{- include "penstock.containerSecurity" . | nindent 2 }}
  resources:
    {{- include "penstock.workerResources" .pool | nindent 4 }}
  volumeMounts:
    - {name: config, mountPath: /etc/penstock, readOnly: true}
    - {name: run, mountPath: /run/penstock}
    {{- if or .pool.sidecar (has .pool.kind (list "api" "batch" "control")) }}
    - {name: tmp, mountPath: /tmp}
    {{- else }}
    {{- include "penstock.engineMounts" .pool | trim | nindent 4 }}
    {{- end }}
    {{- with .pool.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* GPUs belong to the container that hosts the engine. */}}
{{- define "penstock.workerResources" -}}
{{- if or .sidecar (has .kind (list "api" "batch" "control")) -}}
{{- toYaml .resources -}}
{{- else -}}
{{- include "penstock.engineResources" (dict "pool" . "resources" (ternary .vllm.resources .resources (eq .kind "gpu"))) -}}
{{- end -}}
{{- end -}}

{{- define "penstock.workerInitContainers" -}}
{{- with .pool.initContainers }}
{{ toYaml . }}
{{- end }}
{{- if and .root.Values.migrate.enabled .root.Values.postgres.enabled }}
{{ include "penstock.migrateContainer" .root }}
{{- end }}
{{- if .pool.model.prefetch.enabled }}
{{ include "penstock.waitForModel" . }}
{{- end }}
{{- if .pool.sidecar }}
{{ include "penstock.vllmSidecar" . }}
{{- end }}
{{- end -}}

{{- define "penstock.workerVolumes" -}}
- name: config
  configMap: {name: {{ include "penstock.fullname" .root }}}
- name: run
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
- name: tmp
  emptyDir: {sizeLimit: {{ .pool.tmpSize | quote }}}
{{- if has .pool.kind (list "gpu" "embed") }}
{{- include "penstock.engineVolumes" .pool }}
{{- end }}
{{- with .pool.volumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Where the pod may run. */}}
{{- define "penstock.workerNodes" -}}
{{- $affinity := default (include "penstock.spotAffinity" (dict "root" .root "onSpot" .pool.onSpot) | fromYaml) .pool.affinity -}}
{{- with $affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .pool.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "penstock.workerTolerations" . | fromYamlArray }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- /* The scheduler passes over both rules where nodes lack a zone, and over its own default as well: all pods come to one node. */}}
{{- if ternary (has .root.Values.spot.provider (list "gke" "eks" "aks" "karpenter")) .pool.spreadZones (kindIs "invalid" (index .pool "spreadZones")) }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "penstock.poolSelector" . | nindent 8 }}
  # One node that goes takes no more than its share along.
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "penstock.poolSelector" . | nindent 8 }}
{{- end }}
{{- with .pool.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .pool.gpu.runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{- define "penstock.workerTolerations" -}}
{{- $tolerations := .pool.tolerations -}}
{{- if gt (int64 .pool.gpu.count) 0 -}}
{{- $tolerations = append $tolerations (dict "key" .pool.gpu.resource "operator" "Exists" "effect" "NoSchedule") -}}
{{- end -}}
{{- if .pool.onSpot -}}
{{- $tolerations = concat $tolerations (include "penstock.spotTolerations" .root | fromYamlArray) -}}
{{- end -}}
{{- toYaml $tolerations -}}
{{- end -}}

{{- define "penstock.poolSelector" -}}
{{ include "penstock.selector" .root }}
penstock/pool: {{ .pool.name }}
{{- end -}}

{{- define "penstock.poolAnnotations" -}}
checksum/config: {{ include "penstock.toml" .root | sha256sum }}
{{- if not (kindIs "invalid" (index .pool "safeToEvict")) }}
cluster-autoscaler.kubernetes.io/safe-to-evict: {{ .pool.safeToEvict | quote }}
{{- end }}
{{- with .pool.podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}
