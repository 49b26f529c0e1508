{{- define "penstock.migrateContainer" -}}
- name: migrate
  image: {{ include "penstock.image" (dict "root" . "image" .Values.image) }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args: [migrate]
  env:
    {{- include "penstock.databaseEnv" . | nindent 4 }}
  {{- include "penstock.containerSecurity" . | nindent 2 }}
  resources:
    {{- toYaml .Values.migrate.resources | nindent 4 }}
  volumeMounts:
    - {name: tmp, mountPath: /tmp}
{{- end -}}
