{{/*
What each provider of spot nodes calls them, and how long a pod has from SIGTERM to its end.
GKE's kubelet gives user pods 15 of the 30 s notice; AKS drains by itself, late at times; AWS gives 120 s, of which 110 are left.
*/}}
{{- define "penstock.spotProviders" -}}
gke: {label: cloud.google.com/gke-spot, value: "true", tainted: true, notice: 15}
aks: {label: kubernetes.azure.com/scalesetpriority, value: spot, tainted: true, notice: 25}
eks: {label: eks.amazonaws.com/capacityType, value: SPOT, tainted: false, notice: 110}
karpenter: {label: karpenter.sh/capacity-type, value: spot, tainted: false, notice: 110}
custom: {label: {{ .Values.spot.custom.labelKey | quote }}, value: {{ .Values.spot.custom.labelValue | quote }}, tainted: false, notice: 60}
{{- end -}}

{{- define "penstock.notice" -}}
{{- if not (kindIs "invalid" (index .Values.spot "noticeSeconds")) -}}
{{- int64 .Values.spot.noticeSeconds -}}
{{- else if .Values.spot.provider -}}
{{- int64 (get (include "penstock.spotProviders" . | fromYaml) .Values.spot.provider).notice -}}
{{- else -}}
60
{{- end -}}
{{- end -}}

{{/* nodeAffinity of `dict "root" $ "onSpot" bool`: towards spot nodes, or away from them; nothing where there are none. */}}
{{- define "penstock.spotAffinity" -}}
{{- $spot := .root.Values.spot -}}
{{- if $spot.provider -}}
{{- $node := get (include "penstock.spotProviders" .root | fromYaml) $spot.provider -}}
{{- $match := dict "key" $node.label "operator" (ternary "In" "NotIn" .onSpot) "values" (list $node.value) -}}
nodeAffinity:
{{- if and .onSpot (eq $spot.mode "prefer") }}
  preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      preference:
        matchExpressions:
          - {{ toYaml $match | nindent 12 | trim }}
{{- else }}
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      - matchExpressions:
          - {{ toYaml $match | nindent 12 | trim }}
{{- end }}
{{- end -}}
{{- end -}}

{{/* A list: the provider's taint and spot.extraTolerations. */}}
{{- define "penstock.spotTolerations" -}}
{{- $tolerations := list -}}
{{- $node := get (include "penstock.spotProviders" . | fromYaml) .Values.spot.provider -}}
{{- if $node.tainted -}}
{{- $tolerations = append $tolerations (dict "key" $node.label "operator" "Equal" "value" $node.value "effect" "NoSchedule") -}}
{{- end -}}
{{- toYaml (concat $tolerations .Values.spot.extraTolerations) -}}
{{- end -}}

{{/* affinity, nodeSelector and tolerations of pods that must stay: `dict "root" $ "at" values`. */}}
{{- define "penstock.steadyNodes" -}}
{{- with include "penstock.spotAffinity" (dict "root" .root "onSpot" false) }}
affinity:
  {{- . | nindent 2 }}
{{- end }}
{{- with .at.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .at.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
