{{- define "nvfs.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "nvfs.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "nvfs.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "nvfs.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that never change for an object: what selectors use. */ -}}
{{- define "nvfs.selector" -}}
app.kubernetes.io/name: {{ include "nvfs.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "nvfs.labels" -}}
{{ include "nvfs.selector" . }}
app.kubernetes.io/part-of: nvfs-csi
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- /* The name of the driver, which can never change. */ -}}
{{- define "nvfs.driver" -}}csi.nvfs.dev{{- end -}}
{{- define "nvfs.topologyKey" -}}topology.csi.nvfs.dev/node{{- end -}}
{{- define "nvfs.pluginDir" -}}{{ .Values.kubeletDir }}/plugins/{{ include "nvfs.driver" . }}{{- end -}}

{{- /* nvfs.image (dict "image" IMAGE "tag" DEFAULT): a digest wins over a tag. */ -}}
{{- define "nvfs.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .tag }}
{{- end -}}
{{- end -}}

{{- define "nvfs.driverImage" -}}
{{- include "nvfs.image" (dict "image" .Values.image "tag" .Chart.AppVersion) -}}
{{- end -}}

{{- define "nvfs.mountdImage" -}}
{{- $own := .Values.mountd.image -}}
{{- if or $own.repository $own.tag $own.digest -}}
{{- $image := dict "repository" ($own.repository | default .Values.image.repository) "tag" ($own.tag | default .Values.image.tag) "digest" $own.digest -}}
{{- include "nvfs.image" (dict "image" $image "tag" .Chart.AppVersion) -}}
{{- else -}}
{{- include "nvfs.driverImage" . -}}
{{- end -}}
{{- end -}}

{{- /* Where the node and mountd pods run; they must agree. */ -}}
{{- define "nvfs.nodePlacement" -}}
{{- $selector := deepCopy .Values.node.nodeSelector -}}
{{- if and .Values.node.nfdLabel (not .Values.emulated.enabled) -}}
{{- $selector = set $selector .Values.node.nfdLabel "true" -}}
{{- end -}}
nodeSelector:
  {{- toYaml (set $selector "kubernetes.io/os" "linux") | nindent 2 }}
{{- with .Values.node.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.node.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "nvfs.pullSecrets" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- /* A container that needs no privilege at all. It runs as root because the
CSI socket is root's, and root without capabilities can do no more with it. */ -}}
{{- define "nvfs.unprivileged" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- /* Volumes through which a pod reaches the memory of its node. */ -}}
{{- define "nvfs.memoryVolumes" -}}
{{- if .Values.emulated.enabled }}
- name: emulated
  hostPath:
    path: {{ .Values.emulated.dir }}
    type: DirectoryOrCreate
{{- else }}
# Device nodes of namespaces that are made later must show up.
- name: dev
  hostPath:
    path: /dev
    type: Directory
{{- end }}
{{- end -}}

{{- define "nvfs.memoryMounts" -}}
{{- if .Values.emulated.enabled }}
- name: emulated
  mountPath: {{ .Values.emulated.dir }}
{{- else }}
- name: dev
  mountPath: /dev
{{- end }}
{{- end -}}
