{{/*
Lays map `from` over map `into`, in place and map by map. Sprig's mergeOverwrite lets `false` and 0 fall under the table.
*/}}
{{- define "penstock.overlay" -}}
{{- $into := .into -}}
{{- range $key, $value := .from -}}
{{- if and (kindIs "map" $value) (kindIs "map" (get $into $key)) -}}
{{- include "penstock.overlay" (dict "into" (get $into $key) "from" $value) -}}
{{- else if not (kindIs "invalid" $value) -}}
{{- $_ := set $into $key $value -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
All enabled pools as JSON, each complete: poolDefaults, its kind, itself, and what is derived of them
(name, fullname, onSpot, grace, margin, drain, slots, scaled, sidecar). What follows a drain takes up to ``margin`` seconds: an
engine in the worker ends with its processes within 10 s (drain.py).
*/}}
{{- define "penstock.pools" -}}
{{- $root := . -}}
{{- $pools := dict -}}
{{- range $name, $given := .Values.workerPools -}}
{{- if ne (get $given "enabled" | toString) "false" -}}
{{- $pool := deepCopy $root.Values.poolDefaults -}}
{{- include "penstock.overlay" (dict "into" $pool "from" (deepCopy (default dict (get $root.Values.kinds $given.kind)))) -}}
{{- include "penstock.overlay" (dict "into" $pool "from" (deepCopy $given)) -}}
{{- include "penstock.derive" (dict "root" $root "name" $name "pool" $pool) -}}
{{- $_ := set $pools $name $pool -}}
{{- end -}}
{{- end -}}
{{- toJson $pools -}}
{{- end -}}

{{- define "penstock.derive" -}}
{{- $pool := .pool -}}
{{- $spot := .root.Values.spot -}}
{{- $onSpot := and $pool.spot (ne $spot.provider "") -}}
{{- $grace := int64 (ternary (include "penstock.notice" .root) "60" $onSpot) -}}
{{- if not (kindIs "invalid" (index $pool "terminationGracePeriodSeconds")) -}}
{{- $grace = int64 $pool.terminationGracePeriodSeconds -}}
{{- end -}}
{{- $sidecar := and (eq $pool.kind "gpu") (eq $pool.vllm.engine "sidecar") -}}
{{- $margin := int64 (ternary 10 5 (or (eq $pool.kind "embed") (and (eq $pool.kind "gpu") (not $sidecar)))) -}}
{{- $drain := max (sub $grace $margin) 5 -}}
{{- if not (kindIs "invalid" (index $pool "drainSeconds")) -}}
{{- $drain = int64 $pool.drainSeconds -}}
{{- end -}}
{{- $slots := int64 256 -}}
{{- if not (kindIs "invalid" (index $pool "concurrency")) -}}
{{- $slots = int64 $pool.concurrency -}}
{{- else if eq $pool.kind "gpu" -}}
{{- $slots = min 10000 (mul 2 (int64 (default 256 $pool.vllm.maxNumSeqs)) (int64 (default 1 (get $pool.vllm.args "data_parallel_size")))) -}}
{{- end -}}
{{- $_ := set $pool "name" .name -}}
{{- $_ := set $pool "fullname" (printf "%s-%s" (include "penstock.fullname" .root) .name) -}}
{{- $_ := set $pool "onSpot" $onSpot -}}
{{- $_ := set $pool "grace" $grace -}}
{{- $_ := set $pool "margin" $margin -}}
{{- $_ := set $pool "drain" $drain -}}
{{- $_ := set $pool "slots" $slots -}}
{{- $_ := set $pool "scaled" (and (or .root.Values.keda.enabled .root.Values.autoscaling.hpa.enabled) $pool.keda.enabled) -}}
{{- $_ := set $pool "sidecar" $sidecar -}}
{{- end -}}

{{/* "true" where a control pool feeds, so that workers need not. */}}
{{- define "penstock.hasControlPool" -}}
{{- range (include "penstock.pools" . | fromJson) -}}
{{- if and (eq .kind "control") (gt (int64 .replicas) 0) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* The first control pool as JSON, of none an empty object. */}}
{{- define "penstock.controlPool" -}}
{{- $found := dict -}}
{{- range include "penstock.pools" . | fromJson -}}
{{- if and (eq .kind "control") (not $found) -}}{{- $found = . -}}{{- end -}}
{{- end -}}
{{- toJson $found -}}
{{- end -}}
