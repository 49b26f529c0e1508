{{/* What no pod of the chart does: run as root, mount a token, read service links (PENSTOCK_…_PORT would be taken for settings). */}}
{{- define "penstock.podBasics" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Of pods: `dict "user" 10001 "group" 10001`. */}}
{{- define "penstock.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ int64 .user }}
  runAsGroup: {{ int64 .user }}
  fsGroup: {{ int64 .group }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "penstock.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  privileged: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}
