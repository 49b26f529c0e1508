{{/*
Where KEDA or an HPA scales, what it chose stays: without a number an upgrade would start at one GPU, with a number of the chart's it would drop the scale.
GitOps tools render without a cluster and are configured to ignore /spec/replicas (docs/kubernetes.md).

Helm 4 applies on the server, which refuses a number that another client has taken from Helm, and stops half way: a number that Helm no longer
has is never said again. Nor is Kubernetes' own, 1: then Helm has none from the first revision on, and a rollback to any leaves KEDA's alone.
Helm 3 would drop what it no longer says, so there the number is said.
Where scaling is switched off and the number has to change, nothing is applied and the way is named: the server would refuse it, or the scaler change it once more.
*/}}
{{- define "penstock.replicas" -}}
{{- $live := lookup "apps/v1" "Deployment" .root.Release.Namespace .pool.fullname -}}
{{- $applied := false -}}
{{- $ours := false -}}
{{- $theirs := false -}}
{{- range dig "metadata" "managedFields" list $live -}}
{{- $fields := dig "fieldsV1" "f:spec" dict . -}}
{{- if and (eq (dig "operation" "" .) "Apply") (hasKey $fields "f:template") -}}
{{- $applied = true -}}
{{- $ours = hasKey $fields "f:replicas" -}}
{{- end -}}
{{- if and (eq (dig "subresource" "" .) "scale") (hasKey $fields "f:replicas") -}}{{- $theirs = true -}}{{- end -}}
{{- end -}}
{{- if .pool.scaled -}}
{{- $now := int64 (dig "spec" "replicas" .pool.keda.minReplicas $live) -}}
{{- if and (ne $now 1) (or $ours (not $applied)) -}}{{- $now -}}{{- end -}}
{{- else -}}
{{- $now := int64 (dig "spec" "replicas" .pool.replicas $live) -}}
{{- $kind := "hpa" -}}
{{- $scaler := lookup "autoscaling/v2" "HorizontalPodAutoscaler" .root.Release.Namespace .pool.fullname -}}
{{- if not $scaler -}}
{{- $kind = "scaledobject" -}}
{{- if .root.Capabilities.APIVersions.Has "keda.sh/v1alpha1/ScaledObject" -}}
{{- $scaler = lookup "keda.sh/v1alpha1" "ScaledObject" .root.Release.Namespace .pool.fullname -}}
{{- end -}}
{{- end -}}
{{- if and $applied (or $theirs $scaler) (ne $now (int64 .pool.replicas)) -}}
{{- $of := printf "-n %s" .root.Release.Namespace -}}
{{- fail (printf "Deployment %s has %d pods, which KEDA, an HPA or a person has set, and %d are asked for: the server would refuse that half way through, or the number be changed again; first `kubectl %s delete %s %s --ignore-not-found` and `kubectl %s scale deployment %s --replicas=%d`" .pool.fullname $now (int64 .pool.replicas) $of $kind .pool.fullname $of .pool.fullname (int64 .pool.replicas)) -}}
{{- end -}}
{{- int64 .pool.replicas -}}
{{- end -}}
{{- end -}}
