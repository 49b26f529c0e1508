{{/* How processes get their settings: secrets and derived values as PENSTOCK_*, the rest in penstock.toml. */}}

{{- define "penstock.brokerSecret" -}}
{{- if .Values.redis.enabled -}}
{{- default (printf "%s-redis" (include "penstock.fullname" .)) .Values.redis.auth.existingSecret -}}
{{- else -}}
{{- .Values.broker.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "penstock.databaseSecret" -}}
{{- if .Values.postgres.enabled -}}
{{- default (printf "%s-postgres" (include "penstock.fullname" .)) .Values.postgres.auth.existingSecret -}}
{{- else -}}
{{- .Values.database.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "penstock.databaseEnv" -}}
- name: PENSTOCK_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "penstock.databaseSecret" . }}
      key: {{ ternary "url" .Values.database.urlKey .Values.postgres.enabled }}
{{- end -}}

{{- define "penstock.storesEnv" -}}
- name: PENSTOCK_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "penstock.brokerSecret" . }}
      key: {{ ternary "url" .Values.broker.urlKey .Values.redis.enabled }}
{{- if .Values.rabbitmq.existingSecret }}
- name: PENSTOCK_BROKER_URL
  valueFrom:
    secretKeyRef: {name: {{ .Values.rabbitmq.existingSecret }}, key: {{ .Values.rabbitmq.urlKey }}}
{{- end }}
{{ include "penstock.databaseEnv" . }}
- name: PENSTOCK_CONFIG
  value: /etc/penstock/penstock.toml
{{- if .Values.gateway.enabled }}
- {name: PENSTOCK_GATEWAY__FILES, value: {{ .Values.gateway.files | quote }}}
{{- end }}
{{- end -}}

{{/* The variable in which processes find a provider's key. */}}
{{- define "penstock.providerKeyVariable" -}}
{{- printf "PROVIDER_KEY_%s" (. | upper | replace "-" "_") -}}
{{- end -}}

{{- define "penstock.providerKeysEnv" -}}
{{- range $name, $provider := .Values.providers }}
{{- with $provider.apiKey }}
- name: {{ include "penstock.providerKeyVariable" $name }}
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end -}}

{{/* penstock.toml. JSON's strings, numbers, booleans and lists of them are TOML's too; maps become inline tables. */}}
{{- define "penstock.toml" -}}
{{- range $name, $value := .Values.settings }}
{{ $name }} = {{ include "penstock.tomlValue" $value }}
{{- end }}
{{- range $name, $provider := .Values.providers }}

[providers.{{ $name | toJson }}]
{{- range $field, $value := omit $provider "apiKey" }}
{{ $field }} = {{ $value | toJson }}
{{- end }}
{{- if $provider.apiKey }}
api_key_env = {{ include "penstock.providerKeyVariable" $name | toJson }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "penstock.tomlValue" -}}
{{- if kindIs "map" . -}}
{ {{- range $index, $key := keys . | sortAlpha }}{{ if $index }},{{ end }} {{ $key | toJson }} = {{ include "penstock.tomlValue" (get $ $key) }}{{ end }} }
{{- else -}}
{{- toJson . -}}
{{- end -}}
{{- end -}}

{{/* Variables of a map of settings: strings as they are, everything else as JSON. */}}
{{- define "penstock.settingsEnv" -}}
{{- range $name, $value := . }}
- name: PENSTOCK_{{ upper $name }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- end -}}

{{- define "penstock.tracingEnv" -}}
{{- if .Values.tracing.share }}
- name: PENSTOCK_TRACE_SHARE
  value: {{ .Values.tracing.share | quote }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .Values.tracing.endpoint | quote }}
{{- end }}
{{- end -}}

{{- define "penstock.metricsCollector" -}}
{{- default .Values.tracing.endpoint .Values.metrics.otlp.endpoint | trimSuffix "/" -}}
{{- end -}}

{{- define "penstock.metricsEnv" -}}
- name: PENSTOCK_METRICS_HOST
  value: "0.0.0.0"
- name: PENSTOCK_METRICS_PORT
  value: {{ int64 .Values.metrics.port | quote }}
{{- include "penstock.otlpEnv" . }}
{{- end -}}

{{- define "penstock.otlpEnv" -}}
{{- if .Values.metrics.otlp.enabled }}
- name: OTEL_METRICS_EXPORTER
  value: otlp
- name: OTEL_EXPORTER_OTLP_METRICS_ENDPOINT
  value: {{ printf "%s/v1/metrics" (include "penstock.metricsCollector" .) | quote }}
- name: OTEL_METRIC_EXPORT_INTERVAL
  value: {{ mul 1000 .Values.metrics.otlp.intervalSeconds | quote }}
{{- end }}
{{- end -}}

{{/* Of one pool: `dict "root" $ "pool" pool`. */}}
{{- define "penstock.poolEnv" -}}
{{ include "penstock.storesEnv" .root }}
{{- if has .pool.kind (list "api" "batch") }}
{{- include "penstock.providerKeysEnv" .root }}
{{- end }}
{{- if eq .pool.kind "batch" }}
- name: PENSTOCK_BATCH__FOLDER
  value: /tmp/batches
{{- end }}
{{ include "penstock.metricsEnv" .root }}
{{- include "penstock.tracingEnv" .root }}
- name: PENSTOCK_PROBE_DIR
  value: /run/penstock
- name: PENSTOCK_DRAIN_SECONDS
  value: {{ int64 .pool.drain | quote }}
{{- if and .pool.onSpot .root.Values.spot.notices }}
- name: PENSTOCK_SPOT_NOTICES
  value: {{ .root.Values.spot.notices | quote }}
{{- end }}
{{- if ne .pool.kind "control" }}
{{- /* A worker that hosts vLLM takes as many as suit the engine, once that is up. */}}
{{- if or (ne .pool.kind "gpu") .pool.sidecar (not (kindIs "invalid" (index .pool "concurrency"))) }}
- name: PENSTOCK_CONCURRENCY
  value: {{ int64 .pool.slots | quote }}
{{- end }}
{{- if include "penstock.hasControlPool" .root }}
- name: PENSTOCK_CONTROL
  value: "false"
{{- end }}
{{- end }}
{{- include "penstock.engineEnv" .pool }}
{{- include "penstock.ownEnv" .pool }}
{{- end -}}

{{/* What a pool's values add. */}}
{{- define "penstock.ownEnv" -}}
{{- include "penstock.settingsEnv" .settings }}
{{- range $name, $value := .env }}
- name: {{ $name }}
  value: {{ $value | quote }}
{{- end }}
{{- with .extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}
