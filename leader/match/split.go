package match

// MostParts is the most parts into which a query is split.
const MostParts = 3

// numbering is the distance between the numbers of a gateway's queries if the gateway can split
// queries; the numbers between are those of parts.
const numbering = MostParts + 1

// Part is the id of part p of the query id, 1..[MostParts].
func (id QueryID) Part(p int) QueryID {
	id.Sequence += uint64(p)
	return id
}

// Whole is the id of the query of which id is a part, or id itself. Like IsPart, it is only about
// queries of gateways that can split.
func (id QueryID) Whole() QueryID {
	id.Sequence -= id.Sequence % numbering
	return id
}

// IsPart reports whether id is that of a part.
func (id QueryID) IsPart() bool { return id.Sequence%numbering != 0 }
