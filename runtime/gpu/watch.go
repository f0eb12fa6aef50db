//go:build linux && cgo

package gpu

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// slowedBy reads NVML's mask.
func slowedBy(mask uint64) (why []string) {
	for _, r := range []struct {
		bits uint64
		name string
	}{
		{nvml.ClocksThrottleReasonSwPowerCap, PowerCap},
		{nvml.ClocksThrottleReasonSwThermalSlowdown |
			nvml.ClocksThrottleReasonHwThermalSlowdown, Heat},
		{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, PowerBrake},
	} {
		if mask&r.bits != 0 {
			why = append(why, r.name)
		}
	}
	// The hardware's bit is also set with the two above that are the hardware's.
	if mask&nvml.ClocksThrottleReasonHwSlowdown != 0 &&
		mask&(nvml.ClocksThrottleReasonHwThermalSlowdown|
			nvml.ClocksThrottleReasonHwPowerBrakeSlowdown) == 0 {
		why = append(why, Hardware)
	}
	return why
}

const (
	// lookEvery is the time between two looks at a card.
	lookEvery = time.Second
	// eventWait is how long NVML waits for an event at a time; a watch ends no sooner. Chosen: an
	// agent's end waits a quarter of a second for it at most, and four calls a second cost nothing.
	eventWait = 250 * time.Millisecond
)

// Watch looks at the card each second, and as soon as the driver tells of a fault, and calls seen
// with what it has found. It blocks until ctx ends, and up to a quarter of a second longer, or
// until the card has failed; seen is then called for the last time. A card with Unwatched set has
// failed when Fail is called, and is not looked at.
func (c *Card) Watch(ctx context.Context, seen func(Status)) {
	var events nvml.EventSet
	why := c.Unwatched
	if why == nil {
		if events, why = c.registerEvents(); why == nil {
			defer events.Free()
		}
	}
	var s Status
	var last time.Time
	for ctx.Err() == nil {
		if broken := c.broken.Load(); broken != nil && s.Failed == nil {
			s.Failed = *broken
		}
		now := time.Now()
		if c.Unwatched == nil && (s.Failed != nil || now.Sub(last) >= lookEvery) {
			c.readStatus(&s)
			last = now
			seen(s)
		} else if s.Failed != nil {
			seen(s)
		}
		if s.Failed != nil {
			return
		}
		if why != nil { // the card tells of no events, as some do not
			select {
			case <-ctx.Done():
			case <-time.After(eventWait):
			}
			continue
		}
		switch event, ret := events.Wait(uint32(eventWait.Milliseconds())); {
		case ret == nvml.SUCCESS:
			if c.isConcerned(event) {
				s.Xids++
				s.Xid = event.EventData
				s.Failed = xidFault(c, s.Xid)
				last = time.Time{}
			}
		case ret != nvml.ERROR_TIMEOUT:
			if s.Failed = lostError(c, ret); s.Failed == nil {
				why = ret
			}
		}
	}
}

// registerEvents registers for the card's faults.
func (c *Card) registerEvents() (nvml.EventSet, error) {
	api, err := openNVML()
	if err != nil {
		return nil, err
	}
	set, ret := api.EventSetCreate()
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if ret := c.parent.RegisterEvents(nvml.EventTypeXidCriticalError, set); ret != nvml.SUCCESS {
		set.Free()
		return nil, ret
	}
	return set, nil
}

// isConcerned reports whether an event is a fault of this card, or of this slice or the whole card.
func (c *Card) isConcerned(e nvml.EventData) bool {
	return e.EventType&nvml.EventTypeXidCriticalError != 0 &&
		(c.instance == whole || e.GpuInstanceId == whole || e.GpuInstanceId == c.instance)
}

// lostError returns the error of a card that NVML has lost; nil if ret says something else.
func lostError(c *Card, ret nvml.Return) error {
	if slices.Contains([]nvml.Return{
		nvml.ERROR_GPU_IS_LOST, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_GPU_NOT_FOUND,
	}, ret) {
		return fmt.Errorf("%s failed: NVML: %w", c, ret)
	}
	return nil
}

// readStatus sets all of s but the faults that events tell of.
func (c *Card) readStatus(s *Status) {
	s.Utilization, s.Temperature, s.Power, s.Slowed = -1, -1, -1, nil
	failed := func(ret nvml.Return) bool {
		if s.Failed == nil {
			s.Failed = lostError(c, ret)
		}
		return ret != nvml.SUCCESS
	}
	if memory, ret := c.device.GetMemoryInfo(); !failed(ret) {
		s.Memory, s.Used = memory.Total, memory.Used
	}
	if use, ret := c.parent.GetUtilizationRates(); !failed(ret) {
		s.Utilization = float64(use.Gpu) / 100
	}
	if degrees, ret := c.parent.GetTemperature(nvml.TEMPERATURE_GPU); !failed(ret) {
		s.Temperature = int(degrees)
	}
	if mW, ret := c.parent.GetPowerUsage(); !failed(ret) {
		s.Power = float64(mW) / 1000
	}
	// The call's newer name is missing in drivers before 535.
	if mask, ret := c.parent.GetCurrentClocksThrottleReasons(); !failed(ret) {
		s.Slowed = slowedBy(mask)
	}
	for _, count := range []struct {
		kind nvml.MemoryErrorType
		to   *uint64
	}{
		{nvml.MEMORY_ERROR_TYPE_CORRECTED, &s.Corrected},
		{nvml.MEMORY_ERROR_TYPE_UNCORRECTED, &s.Uncorrected},
	} {
		if n, ret := c.parent.GetTotalEccErrors(count.kind, nvml.VOLATILE_ECC); !failed(ret) {
			*count.to = n
		}
	}
}
