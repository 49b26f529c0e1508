{{/*
Where KEDA scales, what it chose stays: without a number an upgrade would start at one GPU, with a number of the chart's it would drop the scale.
GitOps tools render without a cluster and are configured to ignore /spec/replicas (docs/kubernetes.md).

Helm 4 applies on the server, which refuses a number that another client has set, and stops half way: of such a Deployment it says none, and
where the number has to change, nothing is applied and the way is named. Helm 3 would drop what it no longer says, so there the number is said.
Kubernetes' own number, 1, is never said: a rollback to the first revision of a pool with minReplicas 1 then leaves KEDA's alone, too.
*/}}
{{- define "penstock.replicas" -}}
{{- $live := lookup "apps/v1" "Deployment" .root.Release.Namespace .pool.fullname -}}
{{- $applied := false -}}
{{- $theirs := false -}}
{{- range dig "metadata" "managedFields" list $live -}}
{{- $fields := dig "fieldsV1" "f:spec" dict . -}}
{{- if and (eq (dig "operation" "" .) "Apply") (hasKey $fields "f:template") -}}{{- $applied = true -}}{{- end -}}
{{- if and (eq (dig "subresource" "" .) "scale") (hasKey $fields "f:replicas") -}}{{- $theirs = true -}}{{- end -}}
{{- end -}}
{{- $taken := and $applied $theirs -}}
{{- if .pool.scaled -}}
{{- $now := int64 (dig "spec" "replicas" .pool.keda.minReplicas $live) -}}
{{- if not (or $taken (eq $now 1)) -}}{{- $now -}}{{- end -}}
{{- else -}}
{{- $now := int64 (dig "spec" "replicas" .pool.replicas $live) -}}
{{- if and $taken (ne $now (int64 .pool.replicas)) -}}
{{- $of := printf "-n %s" .root.Release.Namespace -}}
{{- fail (printf "Deployment %s has %d pods, which KEDA or a person has set, and %d are asked for: the server would refuse that half way through; first `kubectl %s delete scaledobject %s --ignore-not-found` and `kubectl %s scale deployment %s --replicas=%d`" .pool.fullname $now (int64 .pool.replicas) $of .pool.fullname $of .pool.fullname (int64 .pool.replicas)) -}}
{{- end -}}
{{- int64 .pool.replicas -}}
{{- end -}}
{{- end -}}
