{{/* Models and engines of gpu and embed pools. */}}

{{/* A path for the engine: a name relative to the cache where the cache holds models made elsewhere, else the hub's name. */}}
{{- define "penstock.modelName" -}}
{{- if .model.prefetch.enabled -}}
{{- printf "%s/prefetched/%s" .modelCache.mountPath (include "penstock.modelKey" .) -}}
{{- else -}}
{{- .model.name -}}
{{- end -}}
{{- end -}}

{{/* Names a model at a revision in paths and Jobs. */}}
{{- define "penstock.modelKey" -}}
{{- printf "%s@%s" .model.name .model.revision | sha256sum | trunc 12 -}}
{{- end -}}

{{/* What requests may call a prefetched model besides its path: its own name, and model.servedNames. */}}
{{- define "penstock.servedNames" -}}
{{- $names := .model.servedNames -}}
{{- if .model.prefetch.enabled -}}
{{- $names = prepend $names .model.name -}}
{{- end -}}
{{- toJson (uniq $names) -}}
{{- end -}}

{{/* What the worker's hours cost; nothing where that is not known. */}}
{{- define "penstock.costEnv" -}}
{{- $price := .gpu.usdPerHour -}}
{{- if and .onSpot (not (kindIs "invalid" .gpu.spotUsdPerHour)) -}}
{{- $price = .gpu.spotUsdPerHour -}}
{{- end -}}
{{- if and (has .kind (list "gpu" "embed")) (not (kindIs "invalid" $price)) }}
- name: PENSTOCK_COST__USD_PER_GPU_HOUR
  value: {{ $price | toString | quote }}
- name: PENSTOCK_COST__GPUS
  value: {{ max 1 (int64 .gpu.count) | toString | quote }}
- name: PENSTOCK_COST__ON_SPOT
  value: {{ .onSpot | quote }}
{{- end }}
{{- end -}}

{{- define "penstock.engineEnv" -}}
{{- include "penstock.costEnv" . }}
{{- if eq .kind "embed" }}
- name: PENSTOCK_EMBED__MODEL
  value: {{ include "penstock.modelName" . | quote }}
{{- with include "penstock.servedNames" . | fromJsonArray }}
- name: PENSTOCK_EMBED__NAMES
  value: {{ toJson . | quote }}
{{- end }}
{{- include "penstock.cacheEnv" . }}
{{- else if .sidecar }}
- name: PENSTOCK_GPU__UPSTREAM_URL
  value: {{ printf "http://127.0.0.1:%d/v1" (int64 .vllm.port) | quote }}
- name: PENSTOCK_GPU__NAMES
  value: {{ include "penstock.modelNames" . | quote }}
{{- else if eq .kind "gpu" }}
- name: PENSTOCK_GPU__MODEL
  value: {{ include "penstock.modelName" . | quote }}
{{- with .vllm.maxNumSeqs }}
- name: PENSTOCK_GPU__MAX_NUM_SEQS
  value: {{ int64 . | quote }}
{{- end }}
{{- with include "penstock.servedNames" . | fromJsonArray }}
- name: PENSTOCK_GPU__NAMES
  value: {{ toJson . | quote }}
{{- end }}
{{- with include "penstock.engineArgs" . | fromJson }}
- name: PENSTOCK_GPU__ENGINE
  value: {{ toJson . | quote }}
{{- end }}
{{- with .vllm.lora }}
- name: PENSTOCK_GPU__LORA
  value: {{ toJson . | quote }}
{{- end }}
{{- include "penstock.cacheEnv" . }}
{{- end }}
{{- end -}}

{{/* vllm.args and the revision, which a prefetched folder no longer has. */}}
{{- define "penstock.engineArgs" -}}
{{- $args := deepCopy .vllm.args -}}
{{- if and .model.revision (not .model.prefetch.enabled) -}}
{{- $_ := set $args "revision" .model.revision -}}
{{- end -}}
{{- toJson $args -}}
{{- end -}}

{{/* Where libraries of models write: the cache volume for models, /tmp for what is compiled. Uid 10001 has no passwd entry. */}}
{{- define "penstock.cacheEnv" -}}
{{- range $name, $value := dict
  "HOME" "/tmp"
  "USER" "penstock"
  "XDG_CACHE_HOME" "/tmp/cache"
  "VLLM_CACHE_ROOT" "/tmp/cache/vllm"
  "TRITON_CACHE_DIR" "/tmp/cache/triton"
  "TORCHINDUCTOR_CACHE_DIR" "/tmp/cache/inductor"
  "HF_HOME" (printf "%s/huggingface" (ternary "/tmp" .modelCache.mountPath (eq .modelCache.type "none")))
  "VLLM_NO_USAGE_STATS" "1"
}}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- if or .model.offline .model.prefetch.enabled }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- else }}
{{- include "penstock.hubTokenEnv" . }}
{{- end }}
{{- end -}}

{{- define "penstock.hubTokenEnv" -}}
{{- with .model.tokenSecret }}
- name: HF_TOKEN
  valueFrom:
    secretKeyRef:
      name: {{ . }}
      key: {{ $.model.tokenKey }}
{{- end }}
{{- end -}}

{{/* vllm.resources or resources, with the GPUs: `dict "pool" pool "resources" map`. */}}
{{- define "penstock.engineResources" -}}
{{- $resources := deepCopy .resources -}}
{{- if gt (int64 .pool.gpu.count) 0 -}}
{{- $gpus := dict .pool.gpu.resource (int64 .pool.gpu.count) -}}
{{- $_ := set $resources "limits" (merge $gpus (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{/* Upstream's server as a native sidecar: its startup probe holds the worker back, and it is stopped after the worker. */}}
{{- define "penstock.vllmSidecar" -}}
{{- $pool := .pool -}}
- name: vllm
  image: {{ include "penstock.image" (dict "root" .root "image" .root.Values.vllmImage) }}
  imagePullPolicy: {{ .root.Values.vllmImage.pullPolicy }}
  restartPolicy: Always
  command: [vllm, serve]
  args:
    - {{ include "penstock.modelName" $pool | quote }}
    - --host=127.0.0.1
    - --port={{ int64 $pool.vllm.port }}
    {{- with $pool.vllm.maxNumSeqs }}
    - --max-num-seqs={{ int64 . }}
    {{- end }}
    - --shutdown-timeout={{ int64 $pool.vllm.shutdownTimeoutSeconds }}
    {{- with prepend (include "penstock.servedNames" $pool | fromJsonArray) (include "penstock.modelName" $pool) | uniq }}
    - --served-model-name
    {{- range . }}
    - {{ . | quote }}
    {{- end }}
    {{- end }}
    {{- range $name, $value := include "penstock.engineArgs" $pool | fromJson }}
    {{- $flag := $name | replace "_" "-" }}
    {{- if kindIs "bool" $value }}
    - --{{ ternary "" "no-" $value }}{{ $flag }}
    {{- else }}
    - {{ printf "--%s=%s" $flag (ternary $value (toJson $value) (kindIs "string" $value)) | quote }}
    {{- end }}
    {{- end }}
  env:
    {{- include "penstock.cacheEnv" $pool | trim | nindent 4 }}
  {{- include "penstock.containerSecurity" . | nindent 2 }}
  startupProbe:
    exec:
      command: {{ include "penstock.vllmHealth" $pool }}
    periodSeconds: 10
    timeoutSeconds: 10
    failureThreshold: {{ max 1 (div (int64 $pool.startupSeconds) 10) }}
  livenessProbe:
    exec:
      command: {{ include "penstock.vllmHealth" $pool }}
    periodSeconds: 30
    timeoutSeconds: 10
    failureThreshold: 3
  resources:
    {{- include "penstock.engineResources" (dict "pool" $pool "resources" $pool.vllm.resources) | nindent 4 }}
  volumeMounts:
    {{- include "penstock.engineMounts" $pool | trim | nindent 4 }}
{{- end -}}

{{/* By exec, because the server listens on localhost only, where no other pod can ask it. */}}
{{- define "penstock.vllmHealth" -}}
{{- list "python3" "-c" (printf "import urllib.request as r; r.urlopen('http://127.0.0.1:%d/health', timeout=8)" (int64 .vllm.port)) | toJson -}}
{{- end -}}

{{- define "penstock.engineMounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if eq .kind "gpu" }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
{{- if ne .modelCache.type "none" }}
- {name: models, mountPath: {{ .modelCache.mountPath | quote }}}
{{- end }}
{{- end -}}

{{- define "penstock.engineVolumes" -}}
{{- if eq .kind "gpu" }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .gpu.shmSize | quote }}}
{{- end }}
{{- if eq .modelCache.type "emptyDir" }}
- name: models
  emptyDir: {sizeLimit: {{ .modelCache.size | quote }}}
{{- else if eq .modelCache.type "hostPath" }}
- name: models
  hostPath: {path: {{ .modelCache.hostPath | quote }}, type: Directory}
{{- else if ne .modelCache.type "none" }}
- name: models
  persistentVolumeClaim: {claimName: {{ include "penstock.modelClaim" . | quote }}}
{{- end }}
{{- end -}}

{{- define "penstock.modelClaim" -}}
{{- ternary (printf "%s-models" .fullname) .modelCache.claimName (eq .modelCache.type "pvc") -}}
{{- end -}}

{{/* The prefetch job's last act makes this file. */}}
{{- define "penstock.prefetchedMark" -}}
{{- printf "%s/.penstock-complete" (include "penstock.modelName" .) -}}
{{- end -}}

{{/* Waits for the prefetch job, no longer than that may take: `dict "root" $ "pool" pool`. */}}
{{- define "penstock.waitForModel" -}}
{{- $seconds := int64 .pool.model.prefetch.activeDeadlineSeconds -}}
- name: wait-for-model
  image: {{ include "penstock.workerImage" . }}
  imagePullPolicy: {{ include "penstock.workerPullPolicy" . }}
  command: [sh, -c]
  args:
    - |
      left={{ $seconds }}
      until [ -f "$MARK" ]; do
        if [ "$left" -le 0 ]; then echo "$MARK is not there after {{ $seconds }} s; look at the job {{ include "penstock.prefetchJob" . }}" >&2; exit 1; fi
        left=$((left - 5)); sleep 5
      done
  env:
    - {name: MARK, value: {{ include "penstock.prefetchedMark" .pool | quote }}}
  {{- include "penstock.containerSecurity" . | nindent 2 }}
  resources:
    requests: {cpu: 10m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: models, mountPath: {{ .pool.modelCache.mountPath | quote }}}
{{- end -}}

{{/*
Of `dict "root" $ "pool" pool`. A Job cannot be changed, so whatever is in its pod is in its name: another image is another job,
which finds its files there.
*/}}
{{- define "penstock.prefetchJob" -}}
{{- $values := .root.Values -}}
{{- $inputs := list .pool.model .pool.modelCache $values.vllmImage $values.podSecurity $values.spot $values.imagePullSecrets $values.commonLabels -}}
{{- printf "%s-fetch-%s" (.pool.fullname | trunc 44 | trimSuffix "-") (toJson $inputs | sha256sum | trunc 12) -}}
{{- end -}}
