{{/* Pods of this release: `dict "root" $ "component" name`. */}}
{{- define "penstock.peer" -}}
podSelector:
  matchLabels:
    {{- include "penstock.selector" .root | nindent 4 }}
    {{- with .component }}
    app.kubernetes.io/component: {{ . }}
    {{- end }}
{{- end -}}

{{/* One egress rule to a store: `dict "root" $ "bundled" bool "component" name "at" {cidrs, port}`. */}}
{{- define "penstock.storeEgress" -}}
- ports:
    - {protocol: TCP, port: {{ ternary .bundledPort (int64 .at.port) .bundled }}}
  {{- if .bundled }}
  to:
    - {{ include "penstock.peer" . | nindent 6 | trim }}
  {{- else if .at.cidrs }}
  to:
    {{- range .at.cidrs }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  {{- end }}
{{- end -}}

{{/* Providers, object stores and the hub. `open` still leaves out where clouds hand out credentials: link-local
     (AWS, GCP, Azure, and the pods' own addresses of EKS and ECS), Azure's wire server, Alibaba's, and AWS's and GCP's of IPv6. */}}
{{- define "penstock.providerEgress" -}}
{{- $providers := .Values.networkPolicy.egress.providers -}}
{{- if eq $providers.mode "open" }}
- to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16, 168.63.129.16/32, 100.100.100.200/32]}
    - ipBlock: {cidr: "::/0", except: ["fe80::/10", "fd00:ec2::/32", "fd20:ce::254/128"]}
{{- else if $providers.cidrs }}
- to:
    {{- range $providers.cidrs }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports:
    {{- range $providers.ports }}
    - {protocol: TCP, port: {{ int64 . }}}
    {{- end }}
{{- end }}
{{- end -}}

{{/* Rules to the collectors of traces and metrics, whose ports their schemes tell where they are left out. */}}
{{- define "penstock.collectorEgress" -}}
{{- $endpoints := list -}}
{{- if .Values.tracing.share }}{{ $endpoints = append $endpoints .Values.tracing.endpoint }}{{ end -}}
{{- if .Values.metrics.otlp.enabled }}{{ $endpoints = append $endpoints (include "penstock.metricsCollector" .) }}{{ end -}}
{{- $ports := list -}}
{{- range $endpoints -}}
{{- $url := urlParse . -}}
{{- $ports = append $ports (default (ternary "443" "80" (eq $url.scheme "https")) (regexFind "[0-9]+$" (regexFind ":[0-9]+$" $url.host))) -}}
{{- end -}}
{{- range uniq $ports }}
{{ include "penstock.storeEgress" (dict "root" $ "bundled" false "bundledPort" 0 "at" (dict "cidrs" $.Values.networkPolicy.egress.tracing.cidrs "port" .)) }}
{{- end }}
{{- end -}}
