# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.SimulationTest do
  use ExternalService.Case, async: true

  alias ExternalService.{LimiterStandIn, Simulation}

  doctest ExternalService.Simulation

  defp figures(simulation),
    do: Map.take(simulation, [:opens_after, :worst_call, :attempts, :calls, :elapsed])

  defp simulated(options, scenario \\ :always_failing, given \\ []),
    do: figures(ExternalService.simulate(options, scenario, given))

  describe "one client until the breaker opens" do
    test "has the figures of the reference where a call that gave up melts the breaker" do
      assert simulated(circuit_breaker: [melt: :per_call]) ==
               %{opens_after: 11, worst_call: 150, attempts: 55, calls: 11, elapsed: 1650}
    end

    # The eleventh attempt opens it, and the twelfth, 10 ms later, is refused.
    test "ends with the attempt that a breaker refuses which each attempt melts" do
      assert simulated([]) == %{opens_after: 3, worst_call: 150, attempts: 11, calls: 3, elapsed: 310}
    end

    test "takes the time of the attempts into account" do
      assert simulated([circuit_breaker: [melt: :per_call]], {:always_failing, 100}) ==
               %{opens_after: 11, worst_call: 650, attempts: 55, calls: 11, elapsed: 7150}
    end

    test "never opens the breaker where nothing fails, or not enough inside the window" do
      assert simulated([], {:slow, 30}) == %{
               opens_after: :never,
               worst_call: 30,
               attempts: 100,
               calls: 100,
               elapsed: 3000
             }

      narrow = [circuit_breaker: [within: 1_000, melt: :per_call], retry: [base: 100]]
      assert %{opens_after: :never, calls: 100, elapsed: 150_000} = simulated(narrow)
    end

    test "sees a service recover" do
      options = [circuit_breaker: [melt: :per_call]]
      # Attempts at 0, 10, 30, 70 and 150 fail, and then those at 150, 160, 180; the next is at 220.
      assert %{opens_after: :never, calls: 100, elapsed: 220} = simulated(options, {:failing_for, 200})
    end

    test "waits as long as the budget of the schedule lasts" do
      options = [circuit_breaker: [melt: :per_call], retry: [expiry: 1_000, max_attempts: :infinity]]
      assert %{worst_call: 1_000, opens_after: 11, attempts: 88} = simulated(options)
    end

    test "waits without jitter, unless a seed is given" do
      options = [retry: [jitter: :full, base: 1_000], circuit_breaker: [tolerate: :infinity]]
      assert %{worst_call: 15_000} = simulated(options)
      assert %{worst_call: worst, elapsed: elapsed} = simulated(options, :always_failing, seed: 1)
      assert worst < 15_000
      assert %{elapsed: ^elapsed} = simulated(options, :always_failing, seed: 1)
      assert elapsed != simulated(options, :always_failing, seed: 2).elapsed
    end

    test "makes as many calls as it is told to" do
      assert %{calls: 7, attempts: 7} = simulated([], {:slow, 1}, max_calls: 7)
    end
  end

  describe "a trace" do
    test "is used up, also behind an opening" do
      trace = List.duplicate({:failure, 0}, 3) ++ List.duplicate({:success, 10}, 200)
      options = [circuit_breaker: [tolerate: 2, reset: 5_000], retry: [max_attempts: 1]]
      assert %{opens_after: 3, attempts: 203, calls: 204, elapsed: 7_000} = simulated(options, {:trace, trace})
    end

    test "ends in the middle of a call" do
      assert %{calls: 1, attempts: 2, elapsed: 30} = simulated([], {:trace, [failure: 0, failure: 0]})
    end

    test "may be empty" do
      assert %{calls: 0, attempts: 0, elapsed: 0, opens_after: :never} = simulated([], {:trace, []})
    end
  end

  describe "a time" do
    test "is what passes, whatever happens" do
      for options <- [[], [circuit_breaker: [reset: 300, half_open: true]], [rate_limit: [limit: 1, per: 60_000]]],
          do: assert(%{elapsed: 10_000} = simulated(options, :always_failing, for: 10_000))
    end

    test "lets the breaker open and recover" do
      options = [circuit_breaker: [tolerate: 2, reset: 1_000, half_open: true], retry: [max_attempts: 1]]
      simulation = ExternalService.simulate(options, {:failing_for, 2_500}, for: 5_000)

      states = for row <- Simulation.timeline(simulation), do: {row.at, row.state}
      half_open = [{1_002, :half_open}, {2_002, :half_open}, {3_002, :half_open}]
      assert Enum.uniq(for {at, :half_open} <- states, do: {at, :half_open}) == half_open
      assert List.last(states) |> elem(1) == :closed
    end

    test "without an end is ended by the calls" do
      assert %{calls: 100} = simulated([circuit_breaker: [reset: 10]], :always_failing, for: :infinity)
      assert %{calls: 250} = simulated([circuit_breaker: [reset: 10]], :always_failing, for: :infinity, max_calls: 250)
    end

    test "that the clock can not count ends the simulation where it ends" do
      long = [retry: [base: 100_000_000_000, max_attempts: 1_000], circuit_breaker: [tolerate: :infinity]]
      assert %{attempts: attempts} = simulated(long)
      assert attempts < 1_000
    end
  end

  test "retries without an end are ended after a million attempts, or as many as are said" do
    endless = [retry: [base: 0, max_attempts: :infinity], circuit_breaker: [tolerate: :infinity]]
    assert %{attempts: 5_000, calls: 1} = simulated(endless, :always_failing, max_attempts: 5_000)
  end

  describe "the service" do
    test "may be one that is started, whose state does not count and does not change", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 1, within: 50], retry: [max_attempts: 1])
      fail(s)
      fail(s)
      assert ExternalService.state(s) == :open
      assert %{opens_after: 2, attempts: 2} = simulated(s)
      assert ExternalService.state(s) == :open
      assert VirtualClock.now(clock) == 0
    end

    test "has the options that it has been given meanwhile", %{service: s} do
      ExternalService.start(s, retry: [max_attempts: 1])
      ExternalService.reconfigure(s, circuit_breaker: [tolerate: 4])
      assert %{opens_after: 5} = simulated(s)
    end

    test "is not simulated if it is not started", %{service: s} do
      error = assert_raise ServiceNotStarted, fn -> ExternalService.simulate(s, :always_failing) end
      assert error.context == %{service: s}
    end

    test "is refused by name if its options are wrong, as start/2 does it" do
      assert_raise ValidationError, ~r/unknown options \[:tolerate\]/, fn -> simulated(tolerate: 1) end
      assert_raise ArgumentError, ~r/not allowed/, fn -> simulated(concurrency: [limit: 1, wait: :infinity]) end

      assert_raise ArgumentError, ~r/options of :mail contradict each other/, fn ->
        simulated(name: :mail, circuit_breaker: [slow_rate: 0.5])
      end

      never = [circuit_breaker: [melt: :per_call], retry: [max_attempts: :infinity]]
      assert_raise ArgumentError, ~r/never give up/, fn -> simulated(never) end
    end

    test "is simulated with the library's own backends, with the options that others were given" do
      options = [
        circuit_breaker: [backend: {StandIn, tolerate: 4, report_to: self()}],
        rate_limit: [limit: 5, per: 1_000, backend: LimiterStandIn],
        retry: [max_attempts: 1]
      ]

      assert %{opens_after: 5, attempts: 5} = simulated(options)
      refute_received {:installed, _service, _options}
    end

    test "does not call its sleep function, its predicates or its fallback" do
      never = fn _argument -> flunk("it was called") end
      assert %{attempts: 11} = simulated(sleep_function: never, fallback: never, retry: [retry_on: never])
    end
  end

  test "what is no scenario is refused" do
    assert_raise FunctionClauseError, fn -> ExternalService.simulate([], :sometimes) end
  end

  # Windows are sized with the delays of all retries before anything is simulated.
  test "an error of a backoff function is the caller's" do
    asked = :counters.new(1, [])

    backoff = fn _retry ->
      :counters.add(asked, 1, 1)
      if :counters.get(asked, 1) > 4, do: raise("no delay"), else: 1
    end

    assert_raise RuntimeError, "no delay", fn ->
      ExternalService.simulate([retry: [backoff: backoff]], :always_failing)
    end
  end

  test "starts nothing, emits nothing, writes nothing to the log and leaves no message", %{test: test} do
    handler = {test, self()}
    :ok = Telemetry.attach_many(handler, Telemetry.events(), &__MODULE__.forward/4, {self(), handler})
    on_exit(fn -> Telemetry.detach(handler) end)

    options = [
      name: handler,
      circuit_breaker: [tolerate: 3, reset: 100, half_open: true, fault_injection: 0.1],
      rate_limit: [limit: 10, per: 50],
      concurrency: [limit: 2, wait: 20],
      timeout: 30
    ]

    log = capture_log(fn -> ExternalService.simulate(options, {:intermittent, 0.5}, for: 2_000, clients: 9) end)
    refute log =~ inspect(handler)
    refute_received _message
    assert handler not in ExternalService.services()
  end

  @doc false
  def forward(name, _measurements, %{service: service}, {pid, service}), do: send(pid, name)
  def forward(_name, _measurements, _metadata, _config), do: :ok

  test "the timeline is not shown where the simulation is" do
    refute inspect(ExternalService.simulate([], :always_failing)) =~ "timeline"
  end

  test "the timeline accounts for every attempt, refusal and failure, in a bounded number of rows" do
    options = [
      circuit_breaker: [tolerate: 20, reset: 100],
      retry: [jitter: true],
      rate_limit: [limit: 50, per: 100, wait: 10]
    ]

    simulation = ExternalService.simulate(options, {:intermittent, 0.5}, for: 60_000, clients: 30, rate: 400)
    rows = Simulation.timeline(simulation)
    assert length(rows) <= 1_000
    sums = for key <- [:attempts, :refused], do: rows |> Enum.map(& &1[key]) |> Enum.sum()
    assert sums == [simulation.attempts, simulation.refused]
    assert Enum.all?(sums, &(&1 > 1_000))
  end
end
