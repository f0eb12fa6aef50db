package members_test

import (
	"testing"

	"github.com/muster-serve/muster/agent/agenttest"
)

func TestMain(m *testing.M) { agenttest.Main(m) }
