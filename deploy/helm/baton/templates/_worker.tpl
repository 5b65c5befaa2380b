{{/* The spec of a worker's pod. Called with root, name, group, and isFollower for the other pods of one worker. */}}
{{- define "baton.workerPod" -}}
{{- $root := .root -}}
{{- $group := .group -}}
{{- $tls := $root.Values.tls.workerSecret -}}
{{- $image := include "baton.image" (dict "root" $root "image" $group.image) -}}
{{- $hasKvPort := include "baton.hasKvPort" (dict "root" $root "group" $group) -}}
serviceAccountName: {{ include "baton.fullname" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "baton.gracePeriod" (dict "name" (printf "workers.%s" .name) "given" $group.terminationGracePeriodSeconds "before" $group.drainSeconds "within" $group.shutdownTimeoutSeconds) }}
securityContext:
  {{- include "baton.podSecurity" $root | nindent 2 }}
{{- with $root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "baton.download" (dict "root" $root "image" $image) }}
containers:
  - name: worker
    image: {{ $image }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [baton]
    args:
      {{- if .isFollower }}
      - serve
      {{- else }}
      - {{ $group.role }}-worker
      {{- end }}
      {{- with include "baton.modelPath" $root }}
      - {{ quote . }}
      {{- end }}
      {{- if .isFollower }}
      - --prefill-workers
      - {{ ternary 1 0 (eq $group.role "prefill") | quote }}
      - --decode-workers
      - {{ ternary 1 0 (eq $group.role "decode") | quote }}
      - --mixed
      - {{ ternary 1 0 (eq $group.role "mixed") | quote }}
      - --node-rank
      - $(LWS_WORKER_INDEX)
      {{- else }}
      - --worker-id
      - $(POD_NAME)
      - --peer-address
      - tcp://0.0.0.0:5600
      {{- if $hasKvPort }}
      - --kv-port
      - "5700"
      {{- end }}
      - --advertise-host
      - $(POD_IP)
      - --metrics-port
      - "9100"
      - --health-port
      - "9101"
      - --shutdown-timeout
      - {{ $group.shutdownTimeoutSeconds | quote }}
      {{- include "baton.redisArgs" $root | nindent 6 }}
      {{- if not (include "baton.hasRedis" $root) }}
      - --router
      - {{ include "baton.fullname" $root }}-sessions:8100
      {{- end }}
      {{- if $tls }}
      - --ssl-ca-certs
      - /etc/baton/tls/ca.crt
      - --ssl-certfile
      - /etc/baton/tls/tls.crt
      - --ssl-keyfile
      - /etc/baton/tls/tls.key
      - --ssl-router-name
      - {{ $root.Values.tls.routerName }}
      {{- end }}
      {{- end }}
      {{- $ranks := mul (int $group.tensorParallelSize) (int $group.pipelineParallelSize) }}
      {{- if gt $ranks 1 }}
      - --tensor-parallel-size
      - {{ $group.tensorParallelSize | quote }}
      - --pipeline-parallel-size
      - {{ $group.pipelineParallelSize | quote }}
      {{- end }}
      {{- if gt (int $group.nodes) 1 }}
      - --nnodes
      - {{ $group.nodes | quote }}
      - --master-addr
      - $(LWS_LEADER_ADDRESS)
      {{- else if include "baton.hasPoolsApart" $root }}
      - --rank-pools
      - apart
      {{- end }}
      {{- include "baton.commonArgs" $root | nindent 6 }}
      {{- range $group.args }}
      - {{ quote . }}
      {{- end }}
    env:
      {{- include "baton.env" $root | nindent 6 }}
      - name: XDG_CACHE_HOME
        value: /var/cache/kernels
      - name: TRITON_HOME
        value: /var/cache/baton
      {{- with $group.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    {{- if not .isFollower }}
    ports:
      - {name: peer, containerPort: 5600}
      {{- if $hasKvPort }}
      - {name: kv, containerPort: 5700}
      {{- end }}
      - {name: metrics, containerPort: 9100}
      - {name: health, containerPort: 9101}
    {{- include "baton.probes" (dict "kind" $root.Values.probes.kind "scheme" (ternary "HTTPS" "HTTP" (not (empty $tls))) "httpPort" 9100 "grpcPort" 9101 "startPath" "/started" "startService" "started" "startupSeconds" $group.startupSeconds) | nindent 4 }}
    lifecycle:
      preStop:
        exec:
          command:
            - baton
            - drain
            - --address
            - 127.0.0.1:9100
            {{- if gt (int $group.drainSeconds) 0 }}
            - --wait
            - {{ $group.drainSeconds | quote }}
            {{- end }}
            {{- if $tls }}
            - --ssl-ca-certs
            - /etc/baton/tls/ca.crt
            - --ssl-router-name
            - {{ $root.Values.tls.workerName }}
            {{- end }}
    {{- end }}
    securityContext:
      {{- include "baton.containerSecurity" $root | nindent 6 }}
    resources:
      {{- toYaml $group.resources | nindent 6 }}
    volumeMounts:
      {{- include "baton.mounts" (dict "root" $root "tlsSecret" $tls "extra" $group.extraVolumeMounts) | nindent 6 }}
      - name: kernels
        mountPath: /var/cache/kernels
      - name: shm
        mountPath: /dev/shm
{{- include "baton.scheduling" $group | nindent 0 }}
volumes:
  {{- include "baton.volumes" (dict "root" $root "tlsSecret" $tls "extra" $group.extraVolumes) | nindent 2 }}
  {{- if not (include "baton.hasVolume" (dict "name" "kernels" "volumes" $group.extraVolumes)) }}
  {{- /* In memory, as its root has the sticky bit then: kernels are run from no place where others may replace them. */}}
  - name: kernels
    emptyDir:
      medium: Memory
      sizeLimit: 64Mi
  {{- end }}
  - name: shm
    emptyDir:
      medium: Memory
      sizeLimit: {{ $group.shmSize }}
{{- end -}}

{{/* Labels of a worker's pod. Called with root, name and group. */}}
{{- define "baton.workerLabels" -}}
{{ include "baton.labels" .root }}
app.kubernetes.io/component: worker
baton-group: {{ .name }}
baton-role: {{ .group.role }}
baton-revision: {{ include "baton.revision" .root | quote }}
{{- end -}}
