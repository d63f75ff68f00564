{{- define "protofleet.labels" -}}
app.kubernetes.io/name: protofleet
app.kubernetes.io/instance: {{ (index . 0).Values.fleet.name | quote }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "protofleet.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.secret }}
imagePullSecrets:
  - name: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "protofleet.container" -}}
imagePullPolicy: {{ .Values.image.pull }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "protofleet.resources" -}}
requests: {cpu: {{ .cpu | quote }}, memory: {{ .memory }}}
limits: {memory: {{ .memory }}}
{{- end }}

{{- define "protofleet.claim" -}}
accessModes: [{{ .mode }}]
{{- with .of.storage_class }}
storageClassName: {{ . | quote }}
{{- end }}
resources: {requests: {storage: {{ .of.storage }}}}
{{- end }}
