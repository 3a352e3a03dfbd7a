# Resource policy for the key broker (Trustee KBS): a volume key is released only to a guest
# whose attestation evidence is bound to the initdata that the owner of the key expects.
#
# The host chooses a pod's initdata. Without this policy it could send initdata with a volume
# policy of its own, or none, and still be given the keys: the volume policy would be advisory.
#
# Fill in the two tables below, then set the policy as docs/policy.md shows.
package policy

import rego.v1

default allow := false

# Key path (repository/type/tag) to the digests of the initdata that may have the key, in lower-case
# hexadecimal: `sha256sum initdata.toml`. Name two while you roll out a change. A platform whose
# evidence has room for more pads the digest with zeros (TDX: to 96 digits).
expected_init_data := {"default/volume-key/ledger": {"0000000000000000000000000000000000000000000000000000000000000000"}}

# What every guest that proved itself may have, by the first two segments of the path. No keys here.
open_to_all := {"default/security-policy"}

# Some releases of the broker pass the path as a string, others as an array of its segments.
path := data["resource-path"] if is_string(data["resource-path"])

path := concat("/", data["resource-path"]) if is_array(data["resource-path"])

cpu := input.submods.cpu0

# The evidence is genuine and matches the reference values.
proven if cpu["ear.status"] == "affirming"

allow if {
	proven
	some digest in expected_init_data[path]
	cpu["ear.veraison.annotated-evidence"].init_data == digest
}

allow if {
	proven
	segments := split(path, "/")
	count(segments) == 3
	concat("/", array.slice(segments, 0, 2)) in open_to_all
}
