{{/* Parts of the admission policies. They say in CEL what driver/parameters.py, encryption.py, key_path.py and capabilities.py
say, and may refuse nothing that these accept: tests/cluster/admission compares them on a real API server. */}}

{{/* What the provider's StorageClasses can hold, as a list of CEL; providers/<name>/provider.py. */}}
{{- define "csi.parameters" -}}
{{- $common := list "cloudProvider" "encrypt-type" "kbs-key-id" "fsType" }}
{{- $clouds := dict
  "aws" (list "awsAvailabilityZone" "awsEncrypted" "awsIops" "awsKmsKeyId" "awsRegion" "awsThroughput" "awsVolumeType")
  "azure" (list "azureDiskEncryptionSetId" "azureDiskIops" "azureDiskMbps" "azureDiskSKU" "azureDiskSku" "azureLocation" "azureResourceGroup" "azureSubscriptionId")
  "libvirt" (list "cloudProviderVolumePath")
  "local" (list)
}}
{{- include "csi.celList" (concat $common (get $clouds .Values.provider)) }}
{{- end }}

{{- define "csi.celList" -}}[{{ range $index, $word := . }}{{ if $index }}, {{ end }}'{{ $word }}'{{ end }}]{{- end }}

{{- define "csi.honoredMountOptions" -}}['ro', 'nodev', 'nosuid', 'noatime']{{- end }}

{{/* The class of the claim that is named: spec.storageClassName, or the older annotation, which wins. */}}
{{- define "csi.claimClass" -}}
{{ . }}.metadata.?annotations[?'volume.beta.kubernetes.io/storage-class'].orValue({{ . }}.spec.?storageClassName.orValue(''))
{{- end }}

{{/* The classes of this chart, and those that are named as the driver's. */}}
{{- define "csi.classes" -}}
{{- $own := ternary (list .Values.storageClasses.encrypted.name .Values.storageClasses.plain.name) (list) .Values.storageClasses.create }}
{{- with concat $own .Values.admissionPolicies.moreStorageClasses }}{{ include "csi.celList" . }}{{ end }}
{{- end }}

{{/* What StorageClasses and PersistentVolumes say of encryption, in variables.given; half of it would end in the clear. */}}
{{- define "csi.encryptionValidations" -}}
- expression: ('encrypt-type' in variables.given) == ('kbs-key-id' in variables.given)
  message: >-
    encrypt-type and kbs-key-id belong together, and only one of them is set: set both for an encrypted volume,
    neither for one in the clear
- expression: "!('encrypt-type' in variables.given) || variables.given['encrypt-type'] in ['luks', 'luks2']"
  message: >-
    encrypt-type must be luks2 (or luks, the same), in lower case without spaces; for an unencrypted volume leave out
    encrypt-type and kbs-key-id
- expression: >-
    !('kbs-key-id' in variables.given) || size(variables.keyPath) <= 200 &&
    variables.keyPath.matches('^[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*){2}$')
  message: >-
    kbs-key-id must be the path of a key in the key broker: repository/type/tag, three segments of letters, digits, _ . -
    that do not begin with a dot, at most 200 bytes, without kbs:/// (the guest adds it){{ . }}
{{- end }}

{{- define "csi.mountOptionValidation" -}}
- expression: {{ . }}.all(option, option in {{ include "csi.honoredMountOptions" . }})
  message: >-
    nothing carries these mount options into the guest: mountOptions can hold ro, nodev, nosuid and noatime only;
    remove the others
{{- end }}

{{- define "csi.accessValidations" -}}
- expression: object.spec.?volumeMode.orValue('Filesystem') != 'Block'
  message: >-
    volumeMode Block is not supported: the guest hands containers a mounted file system; use volumeMode Filesystem
- expression: object.spec.?accessModes.orValue([]).all(mode, mode in ['ReadWriteOnce', 'ReadWriteOncePod'])
  message: >-
    one disk can be in one PodVM only: use the access mode ReadWriteOnce or ReadWriteOncePod
{{- end }}

{{- define "csi.policyBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ . }}
spec:
  policyName: {{ . }}
  validationActions: [Deny]
{{- end }}
