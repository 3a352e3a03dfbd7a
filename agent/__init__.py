"""The in-guest agent: runs inside the attested PodVM and believes nothing the host says."""
