package lead

import (
	"context"
	"errors"
	"io"
	"testing"
)

func TestPipe(t *testing.T) {
	one, two := 1, "two"
	refused := errors.New("refused")
	for _, tt := range []struct {
		name  string
		serve func(s *PipeServer[int, string]) error
		want  error
	}{
		{"answers and ends", func(s *PipeServer[int, string]) error {
			n, err := s.Recv()
			if err != nil || *n != one {
				t.Errorf("the server received %v, %v, want %d", n, err, one)
			}
			if err := s.Send(&two); err != nil {
				t.Errorf("the server sends: %v", err)
			}
			if _, err := s.Recv(); err != io.EOF {
				t.Errorf("after CloseSend the server received %v, want EOF", err)
			}
			return nil
		}, io.EOF},
		{"refuses", func(s *PipeServer[int, string]) error { return refused }, refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client, server := NewPipe[int, string](context.Background())
			done := make(chan struct{})
			go func() {
				defer close(done)
				server.End(tt.serve(server))
			}()
			if client.Send(&one) == nil {
				if m, err := client.Recv(); err != nil || *m != two {
					t.Errorf("received %v, %v, want %q", m, err, two)
				}
			}
			if err := errors.Join(client.CloseSend(), client.CloseSend()); err != nil {
				t.Error(err)
			}
			if _, err := client.Recv(); err != tt.want {
				t.Errorf("received %v at last, want %v", err, tt.want)
			}
			if err := client.Send(&one); err != tt.want {
				t.Errorf("send after the end: %v, want %v", err, tt.want)
			}
			<-done
		})
	}

	ctx, cancel := context.WithCancel(context.Background())
	client, server := NewPipe[int, string](ctx)
	cancel()
	if _, err := server.Recv(); !errors.Is(err, context.Canceled) {
		t.Errorf("the server received %v after the context's end, want Canceled", err)
	}
	if err := client.Send(&one); !errors.Is(err, context.Canceled) {
		t.Errorf("send after the context's end: %v, want Canceled", err)
	}
}
