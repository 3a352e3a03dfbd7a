{{- define "csi.driver" -}}caa-csi-block.csi.confidentialcontainers.io{{- end }}
{{- define "csi.tag" -}}{{ .Values.image.tag | default .Chart.AppVersion }}{{- end }}
{{- define "csi.controllerImage" -}}
{{ .Values.image.prefix }}confidential-csi-controller{{ if ne .Values.provider "local" }}-{{ .Values.provider }}{{ end }}:{{ include "csi.tag" . }}
{{- end }}

{{/* What the provider's class offers; empty is false. */}}
{{- define "csi.isFence" -}}{{ if has .Values.provider (list "aws" "azure" "libvirt") }}true{{ end }}{{- end }}
{{- define "csi.hasZones" -}}{{ if has .Values.provider (list "aws" "azure") }}true{{ end }}{{- end }}
{{- define "csi.canModify" -}}{{ if has .Values.provider (list "aws" "azure") }}true{{ end }}{{- end }}

{{/* Where volumes have zones, a node must report one: the provisioner makes nothing for a node without. */}}
{{- define "csi.zone" -}}
{{ .Values.node.zone | default (include "csi.hasZones" . | empty | ternary "" (printf "metadata:%s" .Values.provider)) }}
{{- end }}

{{- define "csi.labels" -}}
app.kubernetes.io/name: confidential-csi
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "csi.hardened" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* Settings of the provider, as environment of the driver. */}}
{{- define "csi.settings" -}}
{{- $settings := dict }}
{{- if has .Values.provider (list "aws" "azure") }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_CLUSTER_ID" .Values.clusterId }}
{{- $tags := list }}
{{- range $key, $value := .Values.extraTags }}{{ $tags = append $tags (printf "%s=%s" $key $value) }}{{ end }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_EXTRA_TAGS" (join "," $tags) }}
{{- end }}
{{- if eq .Values.provider "aws" }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AWS_REGION" .Values.aws.region }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AWS_MORE_REGIONS" (join "," .Values.aws.moreRegions) }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AWS_ZONE" .Values.aws.zone }}
{{- else if eq .Values.provider "azure" }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AZURE_SUBSCRIPTION_ID" .Values.azure.subscriptionId }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AZURE_RESOURCE_GROUP" .Values.azure.resourceGroup }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AZURE_MORE_RESOURCE_GROUPS" (join "," .Values.azure.moreResourceGroups) }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AZURE_LOCATION" .Values.azure.location }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AZURE_ZONE" .Values.azure.zone }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_AZURE_ENDPOINT" .Values.azure.endpoint }}
{{- else if eq .Values.provider "libvirt" }}
{{- $_ := set $settings "LIBVIRT_URI" .Values.libvirt.uri }}
{{- $_ := set $settings "LIBVIRT_POOL" .Values.libvirt.pool }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_LIBVIRT_DIRECTORIES" (join ":" .Values.libvirt.directories) }}
{{- else }}
{{- $_ := set $settings "CONFIDENTIAL_CSI_LOCAL_DIRECTORY" "/disks" }}
{{- end }}
{{- range $name, $value := $settings }}
{{- if $value }}
- {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end }}
{{- end }}

{{/* Name servers; those of OpenShift listen on 5353. */}}
{{- define "csi.dnsPorts" -}}
{{- range list 53 5353 }}
- {port: {{ . }}, protocol: UDP}
- {port: {{ . }}, protocol: TCP}
{{- end }}
{{- end }}

{{- define "csi.sshMounts" }}
- {name: libvirt-ssh, mountPath: /etc/libvirt-ssh, readOnly: true}
- {name: libvirt-ssh, mountPath: /etc/ssh/ssh_known_hosts, subPath: known_hosts, readOnly: true}
{{- end }}

{{/* One sidecar that uses the API: (list root name image port extra-arguments). */}}
{{- define "csi.sidecar" -}}
{{- $root := index . 0 }}{{ $name := index . 1 }}{{ $image := index . 2 }}{{ $port := index . 3 }}
- name: {{ $name }}
  image: {{ $image | quote }}
  imagePullPolicy: {{ $root.Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --leader-election
    - --leader-election-namespace={{ $root.Values.namespaces.controller }}
    - --http-endpoint=:{{ $port }}
    - --timeout=120s
    # A claim takes some five requests; at client-go's five a second, five hundred claims would wait for minutes.
    - --kube-api-qps=100
    - --kube-api-burst=200
    {{- range index . 4 }}
    - {{ . }}
    {{- end }}
  ports:
    - {name: {{ trimPrefix "csi-" $name }}, containerPort: {{ $port }}}
  livenessProbe:
    httpGet: {path: /healthz/leader-election, port: {{ trimPrefix "csi-" $name }}}
    initialDelaySeconds: 20
    timeoutSeconds: 10
    periodSeconds: 20
  securityContext:
    {{- include "csi.hardened" $root | nindent 4 }}
  resources:
    requests: {cpu: 10m, memory: 32Mi}
    limits: {memory: 256Mi}
  volumeMounts:
    - {name: socket, mountPath: /csi}
    - {name: kubernetes-api, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}

{{- define "csi.livenessprobe" -}}
- name: liveness-probe
  image: {{ .Values.sidecars.livenessprobe | quote }}
  imagePullPolicy: {{ .Values.image.pullPolicy }}
  args:
    - --csi-address=/csi/csi.sock
    - --http-endpoint=:9808
  ports:
    - {name: healthz, containerPort: 9808}
  securityContext:
    {{- include "csi.hardened" . | nindent 4 }}
  resources:
    requests: {cpu: 5m, memory: 16Mi}
    limits: {memory: 64Mi}
  volumeMounts:
    - {name: socket, mountPath: /csi}
{{- end }}

{{/* Who may connect to a pod of a role: Prometheus, if it has metrics. */}}
{{- define "csi.ingress" -}}
- from:
    - namespaceSelector:
        matchLabels: {kubernetes.io/metadata.name: {{ .Values.metrics.namespace | quote }}}
  ports:
    - {port: {{ .Values.metrics.port }}, protocol: TCP}
{{- end }}

{{- define "csi.probes" -}}
readinessProbe:
  httpGet: {path: /healthz, port: 9808}
  initialDelaySeconds: 5
  timeoutSeconds: 5
  periodSeconds: 10
livenessProbe:
  httpGet: {path: /healthz, port: 9808}
  initialDelaySeconds: 10
  timeoutSeconds: 5
  periodSeconds: 10
  failureThreshold: 6
{{- end }}
