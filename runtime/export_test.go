package runtime

// Divisible returns a model that runs as whole, and as single on one core of a lane.
func Divisible(whole, single Model) Model { return both{whole, single} }

type both struct {
	Model
	single Model
}

func (b both) onOneCore() Model { return b.single }
