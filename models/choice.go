package models

// A Choice says which versions of a model serve beside those that its version policy chooses, and
// which of them queries get. Its methods must return soon and not call the repository.
type Choice interface {
	// Versions are loaded, if they are on disk, whatever the policy says.
	Versions() []int64
	// Prefer returns which of two versions answers a query that names none; a version of 0 does not
	// exist.
	Prefer(a, b int64) int64
}

// Choose sets the choices of all models, by name; a model without one has its policy alone, and its
// queries get the newest version. It does not block.
func (r *Repository[M]) Choose(choices map[string]Choice) {
	r.mu.Lock()
	r.choices = choices
	for name, m := range r.models {
		m.choice = choices[name]
	}
	if !r.closed {
		r.update()
	}
	r.mu.Unlock()
	r.progress.Send()
}

// preferVersion is the choice's Prefer, else the newer version.
func (m *modelFolder[M]) preferVersion(a, b int64) int64 {
	if m.choice == nil {
		return max(a, b)
	}
	return m.choice.Prefer(a, b)
}
