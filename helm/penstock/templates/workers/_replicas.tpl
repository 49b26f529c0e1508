{{/*
Where KEDA scales, what it chose stays: without a number an upgrade would start at one GPU, with a number of the chart's it would drop the scale.
GitOps tools render without a cluster and are configured to ignore /spec/replicas (docs/kubernetes.md).
*/}}
{{- define "penstock.replicas" -}}
{{- if .pool.scaled -}}
{{- $live := lookup "apps/v1" "Deployment" .root.Release.Namespace .pool.fullname -}}
{{- int64 (dig "spec" "replicas" .pool.keda.minReplicas $live) -}}
{{- else -}}
{{- int64 .pool.replicas -}}
{{- end -}}
{{- end -}}
