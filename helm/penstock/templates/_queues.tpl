{{/*
The queues of a pool, named as penstock_producer/feed/queues.py names them: a test holds both equal.
*/}}

{{/* Of `dict "kind" kind "model" model`, without the prefix `penstock.`: safe names as they are, others with a digest. */}}
{{- define "penstock.modelQueue" -}}
{{- if regexMatch "^[A-Za-z0-9._-]{1,64}$" .model -}}
{{- printf "%s.%s" .kind .model -}}
{{- else -}}
{{- $safe := regexReplaceAll "[^A-Za-z0-9._-]" .model "_" -}}
{{- $from := max 0 (sub (len $safe) 40) | int -}}
{{- printf "%s.%s~%s" .kind (substr $from (len $safe) $safe) (sha256sum .model | trunc 16) -}}
{{- end -}}
{{- end -}}

{{/* All names that requests may give a pool's model, as JSON; the first is what its workers host. */}}
{{- define "penstock.modelNames" -}}
{{- $model := include "penstock.modelName" . -}}
{{- $names := list $model -}}
{{- if not .sidecar -}}
{{- $names = append $names (base $model) -}}
{{- end -}}
{{- $names = concat $names (include "penstock.servedNames" . | fromJsonArray) -}}
{{- if and (eq .kind "gpu") (not .sidecar) -}}
{{- $names = concat $names (keys .vllm.lora | sortAlpha) -}}
{{- end -}}
{{- toJson (uniq $names) -}}
{{- end -}}

{{/*
What KEDA counts for a pool, as JSON of trigger name to key. Of a pool that hosts a model: the queues of its names, the lane's
own, in which jobs wait that name no model, what its workers hold, and what waits for adapters that they have found and this
chart does not know (the control loop counts it, penstock_ledger/keys.py). KEDA's formula takes names of letters.
*/}}
{{- define "penstock.triggers" -}}
{{- $pool := . -}}
{{- $keys := dict "queued" (printf "penstock.%s" .kind) -}}
{{- $home := .kind -}}
{{- $abc := "abcdefghijklmnopqrstuvwxyz" -}}
{{- if has .kind (list "gpu" "embed") -}}
{{- range $at, $name := include "penstock.modelNames" . | fromJsonArray -}}
{{- $queue := include "penstock.modelQueue" (dict "kind" $pool.kind "model" $name) -}}
{{- $first := div $at 26 | int -}}
{{- $second := mod $at 26 | int -}}
{{- $letters := printf "%s%s" (substr $first (add1 $first | int) $abc) (substr $second (add1 $second | int) $abc) -}}
{{- $_ := set $keys (printf "queued%s" $letters) (printf "penstock.%s" $queue) -}}
{{- if eq $at 0 -}}
{{- $home = $queue -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and (eq .kind "gpu") (or .sidecar .vllm.loraFrom) -}}
{{- $_ := set $keys "found" (printf "penstock:found:penstock.%s:waiting" $home) -}}
{{- end -}}
{{- $_ := set $keys "inflight" (printf "unacked.%s" $home) -}}
{{- toJson $keys -}}
{{- end -}}

{{/*
The same sum as KEDA's triggers make, read from the metrics of control loops: `dict "root" $ "pools" pools "pool" pool`. Of several pools
of a kind with models each counts the queues of its names, and the lane's own, which is what the lane has beside those of models.
*/}}
{{- define "penstock.itemsQuery" -}}
{{- $pool := .pool -}}
{{- $of := printf "lane=%q,%s" .pool.kind (default (printf "namespace=%q" .root.Release.Namespace) .root.Values.autoscaling.hpa.matchers) -}}
{{- $terms := list -}}
{{- if include "penstock.sharesLane" . -}}
{{- range $trigger, $key := include "penstock.triggers" .pool | fromJson -}}
{{- if eq $trigger "queued" -}}
{{- $terms = append $terms (printf "(max(penstock_queue_depth{%s}) - (sum(max by (queue) (penstock_model_queue_depth{%s})) or vector(0)))" $of $of) -}}
{{- else if eq $trigger "inflight" -}}
{{- $terms = append $terms (printf "(max(penstock_model_unacked{%s,queue=%q}) or vector(0))" $of (trimPrefix "unacked." $key | printf "penstock.%s")) -}}
{{- else if ne $trigger "found" -}}
{{- $terms = append $terms (printf "(max(penstock_model_queue_depth{%s,queue=%q}) or vector(0))" $of $key) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $terms = list (printf "max(penstock_queue_depth{%s})" $of) (printf "max(penstock_unacked{%s})" $of) -}}
{{- end -}}
{{- join " + " $terms -}}
{{- end -}}

{{/* "true" where other pools of the same kind have other models: `dict "pools" pools "pool" pool`. */}}
{{- define "penstock.sharesLane" -}}
{{- $found := false -}}
{{- range .pools -}}
{{- if and (eq .kind $.pool.kind) (ne .name $.pool.name) (has .kind (list "gpu" "embed")) -}}{{- $found = true -}}{{- end -}}
{{- end -}}
{{- if $found -}}true{{- end -}}
{{- end -}}

{{/* Items for which one pod is started. */}}
{{- define "penstock.itemsPerReplica" -}}
{{- int64 (default .slots .keda.itemsPerReplica) -}}
{{- end -}}

{{/* How fast pods come and go. */}}
{{- define "penstock.scalingBehavior" -}}
scaleDown:
  stabilizationWindowSeconds: {{ int64 .Values.keda.scaleDown.stabilizationWindowSeconds }}
  policies:
    - {type: Pods, value: {{ int64 .Values.keda.scaleDown.podsPerMinute }}, periodSeconds: 60}
scaleUp:
  stabilizationWindowSeconds: 0
  policies:
    - {type: Pods, value: {{ int64 .Values.keda.scaleUp.podsPerMinute }}, periodSeconds: 60}
{{- end -}}
