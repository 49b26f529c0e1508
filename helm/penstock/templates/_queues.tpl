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
