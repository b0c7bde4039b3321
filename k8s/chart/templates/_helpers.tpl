{{- define "photodup.labels" -}}
app.kubernetes.io/part-of: photodup
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "photodup.selector" -}}
app.kubernetes.io/name: {{ .Release.Name }}
{{- end }}

{{- define "photodup.meta" -}}
metadata:
  name: {{ .Release.Name }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "photodup.labels" . | nindent 4 }}
{{- end }}
