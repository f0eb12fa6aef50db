package runtime

import "testing"

// TestPieces: rows are divided into as few pieces as may be.
func TestPieces(t *testing.T) {
	for rows := 1; rows < 300; rows++ {
		for most := 1; most <= rows; most++ {
			pieces := 0
			for rest := rows; rest > 0; pieces++ {
				n := balancedSize(rest, most)
				if n < 1 || n > most {
					t.Fatalf("piece of %d rows of %d, at most %d allowed", n, rest, most)
				}
				rest -= n
			}
			if want := (rows + most - 1) / most; pieces != want {
				t.Fatalf("%d rows, at most %d at once: %d pieces, want %d", rows, most, pieces,
					want)
			}
		}
	}
}
