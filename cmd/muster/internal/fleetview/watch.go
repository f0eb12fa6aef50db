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

// Watch shows the fleet on the terminal of in and out and asks source for its state once each
// interval. It shows first until the first answer. It blocks until the user quits or ctx ends, both
// of which return nil.
func Watch(ctx context.Context, source *Source, first *control.FleetStatus, interval time.Duration,
	in io.Reader, out io.Writer) error {
	m := screen{
		ctx: ctx, source: source, interval: interval, status: first,
		note: source.lastLine(interval),
	}
	// The process's signals end ctx, so bubbletea must not handle them.
	_, err := tea.NewProgram(m, tea.WithContext(ctx), tea.WithoutSignalHandler(), tea.WithInput(in),
		tea.WithOutput(out)).Run()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// A screen is the model of the bubbletea program that shows the fleet. View draws its
// status and its note.
type screen struct {
	ctx           context.Context
	source        *Source
	interval      time.Duration
	status        *control.FleetStatus // the latest that was received
	note          string               // text of the bottom line
	failing       time.Time            // when agents stopped answering; zero while one answers
	width, height int                  // of the terminal; 0 until it is known
}

// An pollResult is the message with the result of one look.
type pollResult struct {
	at     time.Time
	status *control.FleetStatus
	note   string
	err    error
}

// lookDue is the message that it is time for the next look.
type lookDue struct{}

// Init implements tea.Model.
func (m screen) Init() tea.Cmd { return m.wait() }

// wait returns the command that makes the next look due after the interval.
func (m screen) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return lookDue{} })
}

// askSource asks source for the fleet's state. Only its answer starts the wait for the next look,
// so looks do not overlap.
func (m screen) askSource() tea.Msg {
	s, err := m.source.Ask(m.ctx)
	return pollResult{time.Now(), s, m.source.lastLine(m.interval), err}
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
		return m, m.askSource
	case pollResult:
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
			"\n" + faint.Render(cutText(m.note, m.width))
	}
	return view
}
