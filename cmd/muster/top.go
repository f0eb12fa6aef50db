package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"
	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/muster-serve/muster/api/control"
	"github.com/muster-serve/muster/api/oip"
	"github.com/muster-serve/muster/client"
)

func newTopCommand() *cobra.Command {
	var settings clientSettings
	var interval time.Duration
	var once bool
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Watch the fleet",
		Long: `Show the fleet as it is now, again each interval: who leads, the rate of queries
beside the highest that the lanes could serve, the models with their share of
late queries, the agents with what their lanes still have to do, and what the
leader decided last. Keys: q ends it.

Any agent of the fleet will do as --server. When the one that is asked goes
away, another one is asked.

Without a terminal, or with --once, the fleet is printed once, whole.`,
		Example: `  muster top
  muster top --server 10.0.0.7:8001 --interval 5s
  muster top --once | grep overdue`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < shortestInterval {
				return fmt.Errorf("interval: %v, want at least %v", interval, shortestInterval)
			}
			out := cmd.OutOrStdout()
			live := !once && isTerminal(out) && isTerminal(cmd.InOrStdin())
			warnings := cmd.ErrOrStderr()
			if live {
				warnings = io.Discard // they would be written across the screen, which shows what comes of them
			}
			source, err := settings.openFleet(warnings)
			if err != nil {
				return err
			}
			defer source.close()
			first, err := source.ask(cmd.Context())
			if err != nil {
				return err
			}
			if !live {
				// lipgloss leaves out colours where nobody sees them.
				_, err := lipgloss.Fprintln(out, drawFleet(first, printedWidth(out), 0))
				return err
			}
			model := topModel{ctx: cmd.Context(), source: source, interval: interval, status: first, note: source.note(interval)}
			// The context ends with the process's signals already.
			_, err = tea.NewProgram(model, tea.WithContext(cmd.Context()), tea.WithoutSignalHandler(),
				tea.WithInput(cmd.InOrStdin()), tea.WithOutput(out)).Run()
			if cmd.Context().Err() != nil {
				return nil
			}
			return err
		},
	}
	settings.add(cmd.Flags())
	flags := cmd.Flags()
	flags.DurationVar(&interval, "interval", time.Second, "time between two looks")
	flags.BoolVar(&once, "once", false, "print the fleet once, and end")
	return cmd
}

// shortestInterval keeps a typing error from being load on the fleet.
const shortestInterval = 100 * time.Millisecond

// isTerminal reports whether stream, a reader or writer, is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// printedWidth is how wide a fleet is printed to w.
func printedWidth(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil {
			return width
		}
	}
	return 120
}

// topModel is the state of `muster top` on a terminal. Its status and its note
// are what is drawn.
type topModel struct {
	ctx           context.Context
	source        *fleetSource
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
func (m topModel) Init() tea.Cmd { return m.wait() }

// wait has the next look happen after the interval.
func (m topModel) wait() tea.Cmd {
	return tea.Tick(m.interval, func(time.Time) tea.Msg { return lookDue{} })
}

// look asks the fleet. No other look begins before this one has its answer.
func (m topModel) look() tea.Msg {
	s, err := m.source.ask(m.ctx)
	return answer{time.Now(), s, m.source.note(m.interval), err}
}

// Update implements tea.Model.
func (m topModel) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
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
		m.note = fmt.Sprintf("OLD NUMBERS: no answer for %v; %s", msg.at.Sub(m.failing).Round(time.Second), plain(msg.err.Error()))
		return m, m.wait()
	}
	return m, nil
}

// View implements tea.Model.
func (m topModel) View() tea.View {
	view := tea.View{AltScreen: true}
	if m.width > 0 && m.height > 0 {
		view.Content = lipgloss.PlaceVertical(m.height-1, lipgloss.Top, drawFleet(m.status, m.width, m.height-1)) +
			"\n" + faint.Render(cut(m.note, m.width))
	}
	return view
}

// A fleetSource asks one agent of the fleet for its state, and others in turn
// when that one does not answer. It is for one caller at a time.
type fleetSource struct {
	options   []grpc.DialOption
	servers   []string
	addresses []string // all that are known, of gRPC; the first one is asked
	conn      *grpc.ClientConn
	left      string // why the agent before this one is no longer asked; "" if there was none
}

const (
	// askTimeout is how long one agent has to answer: longer than it waits for a
	// leader that does not.
	askTimeout = 3 * time.Second
	// mostAsked agents are asked before there is no answer.
	mostAsked = 4
)

// openFleet makes a source of the servers.
func (s *clientSettings) openFleet(stderr io.Writer) (*fleetSource, error) {
	if len(s.servers) == 0 {
		return nil, errors.New("server: no addresses")
	}
	options, err := s.dialOptions(stderr)
	if err != nil {
		return nil, err
	}
	return &fleetSource{
		options: append(oip.DialOptions(), options...), servers: s.servers, addresses: slices.Clone(s.servers),
	}, nil
}

// ask returns the state of the fleet.
func (f *fleetSource) ask(ctx context.Context) (*control.FleetStatus, error) {
	var first error // of the agent that was asked so far
	for range min(mostAsked, len(f.addresses)) {
		s, err := f.askFirst(ctx)
		if err == nil {
			if first != nil {
				f.left = first.Error()
			}
			f.learn(s)
			return s, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
		f.close()
		f.addresses = append(f.addresses[1:], f.addresses[0])
	}
	return nil, first
}

// askFirst asks the first address.
func (f *fleetSource) askFirst(ctx context.Context) (*control.FleetStatus, error) {
	address := f.addresses[0]
	if f.conn == nil {
		conn, err := grpc.NewClient(address, f.options...)
		if err != nil {
			return nil, fmt.Errorf("server %q: %w", address, err)
		}
		f.conn = conn
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := control.NewControlClient(f.conn).Status(ctx, &control.StatusRequest{})
	switch status.Code(err) {
	case codes.OK:
		plainMessage(s)
		return s, nil
	case codes.Unimplemented:
		return nil, fmt.Errorf("%s tells nothing of a fleet: it is no agent of Muster, or of an older version", address)
	case codes.Unavailable:
		return nil, fmt.Errorf("%s cannot be reached: %s", address, client.Reason(err))
	case codes.DeadlineExceeded:
		return nil, fmt.Errorf("%s has not answered within %v", address, askTimeout)
	}
	return nil, fmt.Errorf("%s: %s", address, client.Reason(err))
}

// learn keeps the addresses of the members, so that each of them can be asked,
// and the servers that the user gave.
func (f *fleetSource) learn(s *control.FleetStatus) {
	known := slices.Clone(f.servers)
	for _, m := range s.GetView().GetMembers() {
		known = append(known, m.GetAddress())
	}
	asked := f.addresses[0]
	f.addresses = slices.DeleteFunc(f.addresses, func(a string) bool { return a != asked && !slices.Contains(known, a) })
	for _, a := range known {
		if a != "" && !slices.Contains(f.addresses, a) {
			f.addresses = append(f.addresses, a)
		}
	}
}

// note says who is asked, and why if it is not the one that was asked before.
func (f *fleetSource) note(interval time.Duration) string {
	note := fmt.Sprintf("q quits; asks %s every %v", f.addresses[0], interval)
	if f.left != "" {
		note += ", since " + plain(f.left)
	}
	return note
}

// close ends the connection; ask opens one again.
func (f *fleetSource) close() {
	if f.conn != nil {
		f.conn.Close()
		f.conn = nil
	}
}
