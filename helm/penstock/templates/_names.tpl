{{/* Names, labels and images. */}}

{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that a pool's name and a Job's suffix still fit into 63. */}}
{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "penstock.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "penstock.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "penstock.selector" -}}
app.kubernetes.io/name: {{ include "penstock.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of every resource. */}}
{{- define "penstock.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Labels of pods: without versions, which would restart every pod that an upgrade leaves as it was. */}}
{{- define "penstock.podLabels" -}}
{{ include "penstock.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* name, namespace and labels of `dict "root" $ "name" … "component" …`. */}}
{{- define "penstock.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "penstock.labels" .root | nindent 2 }}
  app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* repository@digest, or repository:tag; an empty tag is the chart's appVersion. */}}
{{- define "penstock.image" -}}
{{- if .image.digest -}}
{{- printf "%s@%s" .image.repository .image.digest -}}
{{- else -}}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Values of images in use that have no digest, and so may become another image under their tag. */}}
{{- define "penstock.unpinnedImages" -}}
{{- $named := dict "image" .Values.image -}}
{{- range $store := list "redis" "postgres" -}}
{{- if (get $.Values $store).enabled -}}
{{- $_ := set $named (printf "%s.image" $store) (get $.Values $store).image -}}
{{- end -}}
{{- end -}}
{{- range $name, $pool := include "penstock.pools" . | fromJson -}}
{{- $value := printf "workerPools.%s.image" $name -}}
{{- if not $pool.image -}}
{{- $value = ternary "image" (ternary "embedImage" "gpuImage" (eq $pool.kind "embed")) (or $pool.sidecar (not (has $pool.kind (list "gpu" "embed")))) -}}
{{- end -}}
{{- $_ := set $named $value (include "penstock.workerImages" (dict "root" $ "pool" $pool) | fromJson) -}}
{{- if $pool.sidecar -}}
{{- $_ := set $named "vllmImage" $.Values.vllmImage -}}
{{- end -}}
{{- end -}}
{{- $unpinned := list -}}
{{- range $name, $image := $named -}}
{{- if not $image.digest -}}
{{- $unpinned = append $unpinned (printf "%s.digest" $name) -}}
{{- end -}}
{{- end -}}
{{- $unpinned | sortAlpha | join ", " -}}
{{- end -}}

{{- define "penstock.serviceAccountName" -}}
{{- if .Values.serviceAccount.name -}}
{{- .Values.serviceAccount.name -}}
{{- else -}}
{{- ternary (include "penstock.fullname" .) "default" .Values.serviceAccount.create -}}
{{- end -}}
{{- end -}}
