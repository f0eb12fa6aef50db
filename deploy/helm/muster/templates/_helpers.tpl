{{- define "muster.labels" -}}
app.kubernetes.io/name: muster
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "muster.meta" -}}
{{ include "muster.labels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "muster.tlsSecret" -}}
{{- if eq .Values.tls.mode "secret" }}{{ .Values.tls.secret }}{{ else }}{{ .Release.Name }}-tls{{ end }}
{{- end }}

{{- define "muster.gossipSecret" -}}
{{ .Values.gossipKey.secret | default (printf "%s-gossip-key" .Release.Name) }}
{{- end }}

{{/* The spec of a pod. root: the chart's; of: a pool; role: must or never; account: its service
account; state: what holds /var/lib/muster/state, claim or empty. */}}
{{- define "muster.spec" -}}
{{- $v := .root.Values -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: {{ eq .role "must" }}
terminationGracePeriodSeconds: {{ add $v.drain.delaySeconds $v.drain.timeoutSeconds 15 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  fsGroup: 65532
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $v.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- $nodes := .of.nodeSelector | default dict }}
{{- if .of.instanceType }}
{{- $nodes = merge (dict "node.kubernetes.io/instance-type" .of.instanceType) $nodes }}
{{- end }}
{{- with $nodes }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .of.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
# One agent a node: it has the caches and the memory's bandwidth to itself.
affinity:
  podAntiAffinity:
    {{- if eq .role "must" }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- include "muster.labels" .root | nindent 14 }}
    {{- else }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- include "muster.labels" .root | nindent 12 }}
    {{- end }}
containers:
  - name: muster
    image: {{ .of.image | default (printf "%s:%s" $v.image.repository ($v.image.tag | default .root.Chart.AppVersion)) }}
    imagePullPolicy: {{ $v.image.pullPolicy }}
    args:
      - agent
      - --http=:8000
      - --grpc=:8001
      - --metrics=:8002
      - --probe=:8003
      - --gossip=:7946
      - --advertise=$(POD_IP)
      - --join={{ .root.Release.Name }}-gossip:7946
      - --gossip-key=/etc/muster/gossip/gossip.key
      - --leader={{ .role }}
      - --drain-delay={{ $v.drain.delaySeconds }}s
      - --drain-timeout={{ $v.drain.timeoutSeconds }}s
      - --log-format=json
      {{- if eq $v.tls.mode "off" }}
      - --insecure
      {{- else }}
      - --tls-cert=/etc/muster/tls/tls.crt
      - --tls-key=/etc/muster/tls/tls.key
      - --tls-ca=/etc/muster/tls/ca.crt
      {{- end }}
      {{- with $v.modelStore }}
      - {{ printf "--model-store=%s" . | quote }}
      {{- end }}
      {{- with .of.instanceType }}
      - --instance-type={{ . }}
      {{- end }}
      {{- if and (eq .role "must") $v.rent.enabled }}
      - --rent=/etc/muster/fleet/fleet.yaml
      {{- end }}
      {{- range $key, $value := $v.settings }}
      - {{ printf "--%s=%v" $key $value | quote }}
      {{- end }}
    env:
      - name: POD_IP
        valueFrom: {fieldRef: {fieldPath: status.podIP}}
      {{- with $v.env }}
      {{- toYaml . | nindent 6 }}
      {{- end }}
    ports:
      - {name: http, containerPort: 8000}
      - {name: grpc, containerPort: 8001}
      - {name: metrics, containerPort: 8002}
      - {name: probe, containerPort: 8003}
      - {name: gossip, containerPort: 7946}
      - {name: gossip-udp, containerPort: 7946, protocol: UDP}
    startupProbe: {httpGet: {path: /livez, port: probe}, periodSeconds: 1, failureThreshold: 120}
    livenessProbe:
      httpGet: {path: /livez, port: probe}
      periodSeconds: 10
      timeoutSeconds: 5
      failureThreshold: 6
    readinessProbe: {httpGet: {path: /readyz, port: probe}, periodSeconds: 2, failureThreshold: 2}
    {{- with .of.resources }}
    resources: {{- toYaml . | nindent 6 }}
    {{- end }}
    securityContext:
      readOnlyRootFilesystem: true
      allowPrivilegeEscalation: false
      capabilities: {drop: [ALL]}
    volumeMounts:
      - {name: state, mountPath: /var/lib/muster/state}
      - {name: models, mountPath: /var/lib/muster/models}
      - {name: tmp, mountPath: /tmp}
      - {name: gossip, mountPath: /etc/muster/gossip, readOnly: true}
      {{- if ne $v.tls.mode "off" }}
      - {name: tls, mountPath: /etc/muster/tls, readOnly: true}
      {{- end }}
      {{- if and (eq .role "must") $v.rent.enabled }}
      - {name: fleet, mountPath: /etc/muster/fleet, readOnly: true}
      {{- end }}
volumes:
  {{- if ne .state "claim" }}
  - {name: state, emptyDir: {}}
  {{- end }}
  - {name: models, emptyDir: {}}
  - {name: tmp, emptyDir: {}}
  - name: gossip
    secret: {secretName: {{ include "muster.gossipSecret" .root }}, defaultMode: 0440}
  {{- if ne $v.tls.mode "off" }}
  - name: tls
    secret: {secretName: {{ include "muster.tlsSecret" .root }}, defaultMode: 0440}
  {{- end }}
  {{- if and (eq .role "must") $v.rent.enabled }}
  - name: fleet
    configMap: {name: {{ .root.Release.Name }}-fleet}
  {{- end }}
{{- end }}

{{/* The pod that is rented, as the provider reads it. */}}
{{- define "muster.rentedPod" -}}
metadata:
  labels: {{- include "muster.labels" . | nindent 4 }}
    muster.dev/pool: rented
spec: {{- include "muster.spec" (dict "root" . "of" .Values.rent "role" "never" "account" (printf "%s-worker" .Release.Name) "state" "empty") | nindent 2 }}
{{- end }}
