{{- define "baton.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "baton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "baton.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "baton.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "baton.selector" -}}
app.kubernetes.io/name: {{ include "baton.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "baton.labels" -}}
{{ include "baton.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "baton.image" -}}
{{- printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) -}}
{{- end -}}

{{/* A group of workers with the defaults of all. Called with root and name. */}}
{{- define "baton.group" -}}
{{- mustMergeOverwrite (deepCopy .root.Values.workerDefaults) (deepCopy (index .root.Values.workers .name)) | toYaml -}}
{{- end -}}

{{/* The revision: what makes workers differ so that they must not share a request. */}}
{{- define "baton.revision" -}}
{{- if .Values.revision -}}
{{- .Values.revision -}}
{{- else -}}
{{- $facts := list .Values.model (include "baton.image" (dict "root" . "image" .Values.router.image)) -}}
{{- range $name := keys .Values.workers | sortAlpha -}}
{{- $group := include "baton.group" (dict "root" $ "name" $name) | fromYaml -}}
{{- if $group.enabled -}}
{{- $image := include "baton.image" (dict "root" $ "image" $group.image) -}}
{{- $facts = append $facts (list $name $image $group.args $group.env) -}}
{{- end -}}
{{- end -}}
{{- if include "baton.hasPoolsApart" . }}{{ $facts = append $facts "apart" }}{{ end -}}
{{- toJson $facts | sha256sum | trunc 10 -}}
{{- end -}}
{{- end -}}

{{- define "baton.hasRedis" -}}
{{- if or .Values.redis.url .Values.redis.existingSecret.name -}}true{{- end -}}
{{- end -}}

{{- define "baton.modelPath" -}}
{{- if .Values.model.download.repo -}}{{ .Values.model.mountPath }}/model{{- else -}}{{ .Values.model.name }}{{- end -}}
{{- end -}}

{{/* A quantity of memory in MiB, rounded down. */}}
{{- define "baton.mib" -}}
{{- $units := dict "" 1.0 "m" 1e-3 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $units = merge $units (dict "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0) -}}
{{- $units = merge $units (dict "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0) -}}
{{- $text := toString . -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- divf (mulf (trimSuffix $unit $text | float64) (get $units $unit)) 1048576.0 | int64 -}}
{{- end -}}

{{/* The grace period of a pod. Called with name, given, before (seconds of preStop) and within (--shutdown-timeout). */}}
{{- define "baton.gracePeriod" -}}
{{- $least := add .before .within -}}
{{- if kindIs "invalid" .given -}}
{{- add $least 10 -}}
{{- else if lt (int .given) (int $least) -}}
{{- fail (printf "%s: terminationGracePeriodSeconds is %d; allowed: at least %d, the seconds before SIGTERM (%d) and --shutdown-timeout (%d)" .name (int .given) $least (int .before) (int .within)) -}}
{{- else -}}
{{- .given -}}
{{- end -}}
{{- end -}}

{{- define "baton.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "baton.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Flags that every process has after its model. */}}
{{- define "baton.commonArgs" -}}
{{- if .Values.model.servedNames }}
- --served-model-name
{{- range .Values.model.servedNames }}
- {{ quote . }}
{{- end }}
{{- end }}
{{- range .Values.model.args }}
- {{ quote . }}
{{- end }}
{{- end -}}

{{- define "baton.redisArgs" -}}
{{- if .Values.redis.existingSecret.name }}
- --config
- {{ printf "/etc/baton/redis/%s" .Values.redis.existingSecret.key }}
{{- else if .Values.redis.url }}
- --redis
- {{ quote .Values.redis.url }}
{{- end }}
{{- if include "baton.hasRedis" . }}
- --redis-namespace
- {{ printf "%s.%s" (include "baton.fullname" .) (include "baton.revision" .) | quote }}
{{- end }}
{{- end -}}

{{/* Variables of every container. */}}
{{- define "baton.env" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: HF_HOME
  value: /var/cache/baton/huggingface
{{- if or .Values.model.download.repo (hasPrefix "/" .Values.model.name) }}
- name: HF_HUB_OFFLINE
  value: "1"
{{- end }}
{{- if .Values.apiKeySecret.name }}
- name: BATON_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .Values.apiKeySecret.name }}
      key: {{ .Values.apiKeySecret.key }}
{{- end }}
{{- end -}}

{{/* Mounts of every container. Called with root, tlsSecret and extra, further mounts. */}}
{{- define "baton.mounts" -}}
- name: cache
  mountPath: /var/cache/baton
- name: tmp
  mountPath: /tmp
{{- if or .root.Values.model.volume .root.Values.model.download.repo }}
- name: model
  mountPath: {{ .root.Values.model.mountPath }}
  readOnly: true
{{- end }}
{{- if .root.Values.redis.existingSecret.name }}
- name: redis
  mountPath: /etc/baton/redis
  readOnly: true
{{- end }}
{{- if .tlsSecret }}
- name: tls
  mountPath: /etc/baton/tls
  readOnly: true
{{- end }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Volumes of every pod. Called with root, tlsSecret and extra, further volumes; one of them may be the cache. */}}
{{- define "baton.volumes" -}}
{{- if not (include "baton.hasVolume" (dict "name" "cache" "volumes" .extra)) -}}
- name: cache
  emptyDir: {}
{{ end -}}
- name: tmp
  emptyDir: {}
{{- if or .root.Values.model.volume .root.Values.model.download.repo }}
- name: model
  {{- .root.Values.model.volume | default (dict "emptyDir" dict) | toYaml | nindent 2 }}
{{- end }}
{{- if .root.Values.redis.existingSecret.name }}
- name: redis
  secret:
    secretName: {{ .root.Values.redis.existingSecret.name }}
{{- end }}
{{- if .tlsSecret }}
- name: tls
  secret:
    secretName: {{ .tlsSecret }}
{{- end }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* True if there is a volume of a name. Called with name and volumes. */}}
{{- define "baton.hasVolume" -}}
{{- $name := .name -}}
{{- range .volumes }}{{ if eq .name $name }}true{{ end }}{{ end -}}
{{- end -}}

{{/* The init container that fetches the model. Called with root and image. */}}
{{- define "baton.download" -}}
{{- if .root.Values.model.download.repo }}
initContainers:
  - name: model
    image: {{ .image }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: [hf, download]
    args:
      - {{ quote .root.Values.model.download.repo }}
      - --revision
      - {{ quote .root.Values.model.download.revision }}
      - --local-dir
      - {{ printf "%s/model" .root.Values.model.mountPath }}
    env:
      - name: HF_HOME
        value: /var/cache/baton/huggingface
      {{- with .root.Values.model.download.tokenSecret }}
      {{- if .name }}
      - name: HF_TOKEN
        valueFrom:
          secretKeyRef:
            name: {{ .name }}
            key: {{ .key }}
      {{- end }}
      {{- end }}
    securityContext:
      {{- include "baton.containerSecurity" . | nindent 6 }}
    resources:
      requests: {cpu: 500m, memory: 512Mi}
      limits: {memory: 2Gi}
    volumeMounts:
      - name: cache
        mountPath: /var/cache/baton
      - name: tmp
        mountPath: /tmp
      - name: model
        mountPath: {{ .root.Values.model.mountPath }}
{{- end }}
{{- end -}}

{{/* Placement of a pod. Called with the router's values or those of a group. */}}
{{- define "baton.scheduling" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* The three probes. Called with kind, scheme, httpPort, grpcPort, startPath, startService, startupSeconds. */}}
{{- define "baton.probes" -}}
startupProbe:
  {{- include "baton.probe" (merge (dict "path" .startPath "service" .startService) .) | nindent 2 }}
  periodSeconds: 5
  timeoutSeconds: 3
  failureThreshold: {{ max 1 (div (int .startupSeconds) 5) }}
livenessProbe:
  {{- include "baton.probe" (merge (dict "path" "/live" "service" "liveness") .) | nindent 2 }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  {{- include "baton.probe" (merge (dict "path" "/ready" "service" "readiness") .) | nindent 2 }}
  periodSeconds: 2
  timeoutSeconds: 3
  failureThreshold: 2
{{- end -}}

{{- define "baton.probe" -}}
{{- if eq .kind "grpc" -}}
grpc:
  port: {{ .grpcPort }}
  service: {{ .service }}
{{- else -}}
httpGet:
  path: {{ .path }}
  port: {{ .httpPort }}
  scheme: {{ .scheme }}
{{- end -}}
{{- end -}}

{{/* True if a group has workers of several pods, whose ranks share no pool: then all workers have pools apart. */}}
{{- define "baton.hasPoolsApart" -}}
{{- range $name := keys .Values.workers -}}
{{- $group := include "baton.group" (dict "root" $ "name" $name) | fromYaml -}}
{{- if and $group.enabled (gt (int $group.nodes) 1) -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* True if a worker has one pool at one port. Called with root and group; ranks with pools choose their ports. */}}
{{- define "baton.hasKvPort" -}}
{{- $isApart := or (include "baton.hasPoolsApart" .root) (has "apart" .group.args) (has "--rank-pools=apart" .group.args) -}}
{{- if and (eq 1 (mul (int .group.tensorParallelSize) (int .group.pipelineParallelSize))) (not $isApart) -}}true{{- end -}}
{{- end -}}

{{/* The object whose replicas an autoscaler sets. Called with root, name and group. */}}
{{- define "baton.scaleTarget" -}}
{{- if gt (int .group.nodes) 1 -}}
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
{{- else -}}
apiVersion: apps/v1
kind: Deployment
{{- end }}
name: {{ include "baton.fullname" .root }}-{{ .name }}
{{- end -}}
