package kernels

// Break makes the operators of a rewritten model's check compute means in place of sums.
func Break(r *Rewritten) {
	const mode = 7 // SHIM_MODE, as tests cannot use cgo
	for _, n := range r.check.Nodes {
		if n.Domain == domain {
			fields := n.Attribute("bags").([]int64)
			for at := 0; at < len(fields); at += fieldCount {
				fields[at+mode] = 1 - fields[at+mode]
			}
		}
	}
}
