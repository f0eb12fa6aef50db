package fleetview

import (
	"context"
	"fmt"
	"io"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/cmd/muster/internal/terminal"
)

// Watch shows the fleet on the terminal of in and out, first as given, until the user
// or ctx ends it.
func Watch(ctx context.Context, source *Source, first *control.FleetStatus, interval time.Duration,
	in io.Reader, out io.Writer) error {
	m := screen{
		ctx: ctx, source: source, interval: interval, status: first, note: source.note(interval),
	}
	// The context ends with the process's signals already.
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithoutSignalHandler(), tea.WithInput(in),
		tea.WithOutput(out)).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// A screen shows the fleet on a terminal. Its status and its note are what is drawn.
type screen struct {
	ctx           context.Context
	source        *Source
	interval      time.Duration
	status        *control.FleetStatus // the last there was
	note          string               // the last line
	failing       time.Time            // since when no agent answers; zero if one does
	width, height int                  // of the terminal; 0 as long as it is not known
}

// An answer is what one look brought.
type answer struct {
	at     time.Time
	status *control.FleetStatus
	note   string
	err    error
}

// A look is due.
type lookDue struct{}

// Init implements tea.Model.
func (m screen) Init() tea.Cmd { return m.wait() }

// wait has the next look happen after the interval.
func (m screen) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return lookDue{} })
}

// look asks the fleet. No other look begins before this one has its answer.
func (m screen) look() tea.Msg {
	s, err := m.source.Ask(m.ctx)
	return answer{time.Now(), s, m.source.note(m.interval), err}
}

// Update implements tea.Model.
func (m screen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.KeyPressMsg:
		switch msg.String() {
		case "q", "ctrl+c":
			return m, tea.Quit
		}
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case lookDue:
		return m, m.look
	case answer:
		if msg.err == nil {
			m.status, m.note, m.failing = msg.status, msg.note, time.Time{}
			return m, m.wait()
		}
		if m.failing.IsZero() {
			m.failing = msg.at
		}
		m.note = fmt.Sprintf("OLD NUMBERS: no answer for %v; %s",
			msg.at.Sub(m.failing).Round(time.Second), terminal.Plain(msg.err.Error()))
		return m, m.wait()
	}
	return m, nil
}

// View implements tea.Model.
func (m screen) View() tea.View {
	view := tea.View{AltScreen: true}
	if m.width > 0 && m.height > 0 {
		view.Content = lipgloss.PlaceVertical(m.height-1, lipgloss.Top,
			Draw(m.status, m.width, m.height-1)) +
			"\n" + faint.Render(cut(m.note, m.width))
	}
	return view
}
