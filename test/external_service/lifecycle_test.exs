# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.LifecycleTest do
  use ExternalService.Case, async: true
  import ExternalService.Callers

  alias ExternalService.{Concurrency, Lifecycle, PlainLimiter, RateLimited, RateLimiter}

  # Far longer than any test takes.
  @long 60_000

  defmodule Broken do
    # A rate limiter that can not be started.
    @behaviour ExternalService.RateLimiter

    @impl true
    def init(_service, _options), do: raise("no connection")

    @impl true
    def check(_service, _config), do: :ok

    @impl true
    def peek(_service, _config), do: :ok

    @impl true
    def reset(_service, _config), do: :ok
  end

  defmodule Unresettable do
    # A breaker whose reset fails, and which reports to the test that it was asked.
    @behaviour ExternalService.CircuitBreaker
    @impl true
    def install(_service, options), do: {:ok, options[:report_to]}

    @impl true
    def ask(_service, _pid), do: :ok

    @impl true
    def melt(_service, _pid), do: :ok

    @impl true
    def reset(_service, pid) do
      send(pid, {:backend, :reset})
      {:error, :not_found}
    end

    @impl true
    def remove(_service, _pid), do: :ok
  end

  defp reconfigure(service, options), do: assert(ExternalService.reconfigure(service, options) == :ok)

  # How many requests go until one is refused.
  defp requests(service), do: if(RateLimiter.request(service) == :ok, do: 1 + requests(service), else: 0)

  describe "reconfigure/2 with more slots" do
    test "wakes as many waiters as there is room for, in their order", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      [first, second, third] = for _ <- 1..3, do: queue(s)
      reconfigure(s, concurrency: [limit: 3])
      entered(first)
      entered(second)
      assert counts(s) == {3, 1}
      assert Concurrency.limit(s) == 3
      refute_received {:inside, ^third}
      finish(holder)
      entered(third)
      for pid <- [first, second, third], do: assert(finish(pid) == {:returned, :done})
      assert counts(s) == {0, 0}
    end

    test "wakes hundreds of waiters at once", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      hold(s)
      waiters = for _ <- 1..300, do: queue(s)
      reconfigure(s, concurrency: [limit: 301])
      Enum.each(waiters, &entered/1)
      assert counts(s) == {301, 0}
    end

    test "lets more calls run at once", %{service: s} do
      start_limited(s, limit: 1)
      hold(s)
      refused(s)
      reconfigure(s, concurrency: [limit: 2])
      hold(s)
      assert refused(s).context == %{service: s, limit: 2, in_flight: 2, queued: 0}
    end

    test "and leases keeps the leases that are held", %{service: s} do
      clock = start_on_clock(s, concurrency: [limit: 1, reclaim_after: 100])
      holder = hold(s)
      VirtualClock.advance(clock, 60)
      reconfigure(s, concurrency: [limit: 2])
      young = hold(s)
      VirtualClock.advance(clock, 40)
      next = hold(s)
      refused(s)
      finish(holder)
      assert counts(s) == {2, 0}
      for pid <- [young, next], do: finish(pid)
      assert counts(s) == {0, 0}
    end
  end

  describe "reconfigure/2 with fewer slots" do
    test "takes them away as holders finish, from none of them before", %{service: s} do
      start_limited(s, limit: 3)
      [one, two, three] = for _ <- 1..3, do: hold(s)
      reconfigure(s, concurrency: [limit: 1])
      assert Concurrency.limit(s) == 1
      assert counts(s) == {3, 0}
      assert ExternalService.saturated?(s)
      assert finish(one) == {:returned, :done}
      refused(s)
      assert finish(two) == {:returned, :done}
      refused(s)
      assert finish(three) == {:returned, :done}
      hold(s)
      refused(s)
    end

    test "lets a waiter in only when fewer hold than the new limit", %{service: s} do
      start_limited(s, limit: 2, wait: @long)
      [one, two] = for _ <- 1..2, do: hold(s)
      waiter = queue(s)
      reconfigure(s, concurrency: [limit: 1])
      finish(one)
      assert counts(s) == {1, 1}
      refute_received {:inside, ^waiter}
      finish(two)
      entered(waiter)
      assert counts(s) == {1, 0}
    end

    test "takes away the slots of holders that are killed, too", %{service: s} do
      start_limited(s, limit: 3)
      [one, two, _three] = for _ <- 1..3, do: hold(s)
      reconfigure(s, concurrency: [limit: 1])
      kill(one)
      kill(two)
      soon(fn -> counts(s) == {1, 0} end)
      refused(s)
    end

    test "and then more again is as if nothing had been", %{service: s} do
      start_limited(s, limit: 2)
      for _ <- 1..2, do: hold(s)
      for limit <- [1, 5, 1, 2], do: reconfigure(s, concurrency: [limit: limit])
      refused(s)
      assert counts(s) == {2, 0}
    end
  end

  describe "reconfigure/2 of the queue" do
    test "leaves those in it who wait, and keeps others out", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiters = for _ <- 1..3, do: queue(s)
      reconfigure(s, concurrency: [queue: 1])
      assert refused(s).context.queued == 3

      last =
        Enum.reduce(waiters, holder, fn next, before ->
          finish(before)
          entered(next)
          next
        end)

      queue(s)
      refused(s)
      finish(last)
    end

    test "to other waits holds for those who come after", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      reconfigure(s, concurrency: [wait: false])
      refused(s)
      assert counts(s) == {1, 1}
      finish(holder)
      entered(waiter)
    end
  end

  describe "reconfigure/2 of other slots" do
    test "gives a service its first limit, which counts calls from then on", %{service: s} do
      ExternalService.start(s)
      early = hold(s)
      reconfigure(s, concurrency: [limit: 1])
      assert counts(s) == {0, 0}
      hold(s)
      refused(s)
      finish(early)
      assert counts(s) == {1, 0}
    end

    test "with another reclaim_after leaves holders and waiters their old ones", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      holder = hold(s)
      waiter = queue(s)
      reconfigure(s, concurrency: [reclaim_after: 1000])
      next = hold(s)
      finish(holder)
      entered(waiter)
      finish(waiter)
      assert counts(s) == {1, 0}
      finish(next)
      assert counts(s) == {0, 0}
    end
  end

  describe "reconfigure/2 of the rate limit" do
    defp start_still(service, rate_limit) do
      start_on_clock(service, rate_limit: rate_limit, sleep_function: recording_sleep())
    end

    test "keeps the share of it that is used", %{service: s} do
      start_still(s, limit: 10, per: 1000, wait: false)
      for _ <- 1..5, do: :ok = RateLimiter.request(s)
      reconfigure(s, rate_limit: [limit: 20])
      assert requests(s) == 10
      reconfigure(s, rate_limit: [limit: 1000])
      assert requests(s) == 0
      reconfigure(s, rate_limit: [limit: 2])
      assert requests(s) == 0
    end

    test "changes the rate from then on", %{service: s} do
      clock = start_still(s, limit: 10, per: 1000, wait: false)
      assert requests(s) == 10
      VirtualClock.advance(clock, 500)
      assert requests(s) == 5
      reconfigure(s, rate_limit: [limit: 100])
      VirtualClock.advance(clock, 500)
      assert requests(s) == 50
      reconfigure(s, rate_limit: [per: 10_000])
      VirtualClock.advance(clock, 500)
      assert requests(s) == 5
    end

    test "keeps the times of those who have booked a place", %{service: s} do
      start_still(s, limit: 1, per: 1000, wait: :infinity)
      for _ <- 1..3, do: :ok = RateLimiter.request(s)
      assert slept() == [1000, 2000]
      reconfigure(s, rate_limit: [limit: 10])
      :ok = RateLimiter.request(s)
      assert slept() == [2100]
    end

    test "to another wait leaves what is used alone", %{service: s} do
      start_still(s, limit: 2, per: 1000, wait: false)
      assert requests(s) == 2
      reconfigure(s, rate_limit: [wait: 500])
      assert {RateLimiter.request(s), slept()} == {:ok, [500]}
      assert {:error, %RateLimited{context: %{retry_after: 1000}}} = RateLimiter.request(s)
    end

    test "to 0 refuses all, to :infinity none", %{service: s} do
      start_still(s, limit: 2, per: 1000, wait: false)
      reconfigure(s, rate_limit: [limit: 0])
      assert {:error, %RateLimited{context: %{retry_after: :infinity}}} = RateLimiter.request(s)
      reconfigure(s, rate_limit: [limit: :infinity])
      for _ <- 1..100, do: assert(RateLimiter.request(s) == :ok)
      reconfigure(s, rate_limit: [limit: 3])
      assert requests(s) == 3
    end

    test "from 0 to a limit lets calls go again", %{service: s} do
      clock = start_still(s, limit: 0, per: 1000, wait: false)
      assert requests(s) == 0
      reconfigure(s, rate_limit: [limit: 3])
      VirtualClock.advance(clock, 1000)
      assert requests(s) == 3
    end

    test "gives a service its first limit", %{service: s} do
      start_on_clock(s)
      reconfigure(s, rate_limit: [limit: 2, per: 1000, wait: false])
      assert requests(s) == 2
    end

    test "leaves a limit of concurrency alone, and the other way round", %{service: s} do
      options = [rate_limit: [limit: 3, per: @long, wait: false], concurrency: [limit: 1]]
      start_on_clock(s, options)
      holder = hold(s)
      reconfigure(s, rate_limit: [wait: 1])
      assert counts(s) == {1, 0}
      reconfigure(s, concurrency: [limit: 2])
      assert requests(s) == 2
      finish(holder)
      assert counts(s) == {0, 0}
    end
  end

  describe "reconfigure/2" do
    test "keeps the breaker's state and its failures", %{service: s} do
      clock = start_on_clock(s, circuit_breaker: [tolerate: 2, reset: 1000], concurrency: [limit: 1])
      Recorder.attach(s, [[:circuit_breaker, :opened], [:circuit_breaker, :closed]])
      for _ <- 1..2, do: fail(s)
      reconfigure(s, concurrency: [limit: 2], rate_limit: [limit: 100, per: 1])
      assert ExternalService.state(s) == :closed
      fail(s)
      assert ExternalService.state(s) == :open
      VirtualClock.advance(clock, 400)
      reconfigure(s, concurrency: [limit: 3], rate_limit: [limit: 50])
      assert {:error, %CircuitBreakerOpen{context: %{retry_after: 600}}} = fail(s)
      VirtualClock.advance(clock, 600)
      assert ExternalService.state(s) == :closed
      assert Recorder.names() == [[:circuit_breaker, :opened], [:circuit_breaker, :closed]]
    end

    test "with no options changes nothing", %{service: s} do
      start_limited(s, limit: 1, wait: @long)
      hold(s)
      queue(s)
      reconfigure(s, [])
      assert {Concurrency.limit(s), counts(s)} == {1, {1, 1}}
    end

    test "merges: what is not named stays", %{service: s} do
      start_recording(s,
        concurrency: [limit: 1, wait: @long, queue: 1],
        retry: [max_attempts: 2, base: 7],
        telemetry: :changes
      )

      reconfigure(s, concurrency: [queue: 2], retry: [max_attempts: 3])
      Recorder.attach(s, [[:call, :start]])
      assert {:error, %RetriesExhausted{context: %{attempts: 3}}} = ExternalService.call(s, fn -> :retry end)
      assert slept() == [7, 14]
      hold(s)
      for _ <- 1..2, do: queue(s)
      assert refused(s).context == %{service: s, limit: 1, in_flight: 1, queued: 2}
      assert Recorder.events() == []
    end

    test "does not disturb calls that are under way", %{service: s} do
      start_recording(s, concurrency: [limit: 1], retry: [max_attempts: 3])

      fun = fn ->
        reconfigure(s, concurrency: [limit: 5], retry: [max_attempts: 1])
        {:retry, counts(s)}
      end

      assert {:error, %RetriesExhausted{context: context}} = ExternalService.call(s, fun)
      assert %{attempts: 3, reason: {1, 0}} = context
    end

    test "never makes a call fail that runs at the same time", %{service: s} do
      start_limited(s, limit: 4, wait: @long)

      together(5, fn
        1 -> for n <- 1..50, do: reconfigure(s, concurrency: [limit: rem(n, 4) + 1])
        _ -> for _ <- 1..500, do: admitted(s)
      end)

      assert counts(s) == {0, 0}
    end

    test "of many processes at once loses no change", %{service: s} do
      ExternalService.start(s, concurrency: [limit: 1], rate_limit: [limit: 1, per: 1])

      changes = [
        [concurrency: [limit: 11]],
        [concurrency: [wait: 12]],
        [concurrency: [queue: 13]],
        [rate_limit: [limit: 14]],
        [rate_limit: [per: 15]],
        [rate_limit: [wait: 16]],
        [retry: [base: 17]],
        [retry: [max_attempts: 18]]
      ]

      together(8, fn n -> reconfigure(s, Enum.at(changes, n - 1)) end)
      service = ExternalService.Service.get(s)

      assert Enum.map([:limit, :wait, :queue], &service.options[:concurrency][&1]) == [11, 12, 13]
      assert Enum.map([:limit, :per, :wait], &service.options[:rate_limit][&1]) == [14, 15, 16]
      assert {service.retry.base, service.retry.max_attempts} == {17, 18}
      assert Concurrency.limit(s) == 11
    end

    test "of a service that is not started raises, and starts nothing", %{service: s} do
      error = raised(fn -> ExternalService.reconfigure(s, concurrency: [limit: 1]) end)
      assert %ServiceNotStarted{context: %{service: ^s}} = error
      assert s not in ExternalService.services()
      ExternalService.start(s)
      ExternalService.stop(s)
      assert %ServiceNotStarted{} = raised(fn -> ExternalService.reconfigure(s, []) end)
    end
  end

  describe "reconfigure/2 with options that are wrong" do
    @wrong [
      {[concurrency: [limit: 9, wait: :infinity]], ArgumentError},
      {[concurrency: [limit: 0]], ValidationError},
      {[concurrency: [limit: 1_000_001]], ValidationError},
      {[concurrency: [limit: 9, queue: -1]], ValidationError},
      {[concurrency: [limit: 9, colour: :red]], ValidationError},
      {[concurrency: [limit: 9], rate_limit: [limit: -1]], ValidationError},
      {[concurrency: [limit: 9], rate_limit: [per: 0]], ValidationError},
      {[concurrency: [limit: 9], rate_limit: [backend: Broken]], RuntimeError},
      {[concurrency: [limit: 9], rate_limit: [backend: NoSuchModule]], ValidationError},
      {[concurrency: [limit: 9], circuit_breaker: [tolerate: -1]], ValidationError},
      {[concurrency: [limit: 9], circuit_breaker: [tolerate: :infinity, fault_injection: 0.5]], ArgumentError},
      {[concurrency: [limit: 9], circuit_breaker: [melt: :per_call], retry: [max_attempts: :infinity]], ArgumentError},
      {[concurrency: [limit: 9], retry: [max_attempts: 0]], ValidationError},
      {[concurrency: [limit: 9], colour: :red], ValidationError},
      {[concurrency: nil], ValidationError},
      {:nonsense, ValidationError}
    ]

    for {{options, kind}, n} <- Enum.with_index(@wrong) do
      test "raises and changes nothing: #{n}, #{inspect(options)}", %{service: s} do
        clock =
          start_on_clock(s,
            circuit_breaker: [tolerate: 1],
            concurrency: [limit: 2, wait: 7],
            rate_limit: [limit: 4, per: @long, wait: false]
          )

        fail(s)
        holders = for _ <- 1..2, do: hold(s)
        before = ExternalService.Service.get(s)

        kind = unquote(kind)
        assert %^kind{} = raised(fn -> ExternalService.reconfigure(s, unquote(Macro.escape(options))) end)

        assert ExternalService.Service.get(s) == before
        assert {Concurrency.limit(s), counts(s)} == {2, {2, 0}}
        assert refused(s).context.limit == 2
        assert VirtualClock.now(clock) == 7
        assert requests(s) == 1
        Enum.each(holders, &finish/1)
        RateLimiter.reset(s)
        fail(s)
        assert ExternalService.state(s) == :open
      end
    end

    test "does not touch a breaker of another kind", %{service: s} do
      ExternalService.start(s, circuit_breaker: [backend: StandIn.backend()])
      assert_received {:installed, ^s, _}
      wrong = [circuit_breaker: [tolerate: 3], rate_limit: [limit: 1, per: 1, backend: Broken]]
      assert %RuntimeError{} = raised(fn -> ExternalService.reconfigure(s, wrong) end)
      refute_received {:installed, ^s, _}
      assert StandIn.count(:remove) == 0
    end
  end

  describe "reset_all/1" do
    test "resets breaker, rate limit and concurrency limit", %{service: s} do
      start_on_clock(s,
        circuit_breaker: [tolerate: 0],
        rate_limit: [limit: 2, per: @long, wait: false],
        concurrency: [limit: 1]
      )

      hold(s)
      requests(s)
      CircuitBreaker.melt(s)
      assert ExternalService.reset_all(s) == :ok
      assert ExternalService.state(s) == :closed
      assert counts(s) == {0, 0}
      assert requests(s) == 2
    end

    test "resets in this order", %{service: s} do
      rate_limit = [limit: 1, per: 1, backend: PlainLimiter.backend()]
      ExternalService.start(s, circuit_breaker: [backend: StandIn.backend()], rate_limit: rate_limit)
      assert [{:init, ^s, _}] = PlainLimiter.calls()
      assert ExternalService.reset_all(s) == :ok
      {:messages, messages} = Process.info(self(), :messages)
      assert [{:backend, :reset}, {:limiter, :reset}] = for({_, :reset} = message <- messages, do: message)
    end

    # In a VM of its own, where no module is loaded before it is used.
    test "may be the first thing that is done with backends of others" do
      script = """
      alias ExternalService.{PlainLimiter, StandIn}
      limit = [limit: 1, per: 1, backend: PlainLimiter.backend()]
      :ok = ExternalService.start(:fresh, circuit_breaker: [backend: StandIn.backend()], rate_limit: limit)
      IO.inspect(ExternalService.reset_all(:fresh))
      """

      ebin = Application.app_dir(:external_service, "ebin")
      {output, 0} = System.cmd(System.find_executable("elixir"), ["-pa", ebin, "-e", script], stderr_to_stdout: true)
      assert output |> String.trim() |> String.split("\n") |> List.last() == ":ok", output
    end

    test "stops at the first that can not be reset", %{service: s} do
      ExternalService.start(s,
        circuit_breaker: [backend: {Unresettable, report_to: self()}],
        rate_limit: [limit: 1, per: 1, backend: PlainLimiter.backend()],
        concurrency: [limit: 1]
      )

      hold(s)
      PlainLimiter.calls()
      assert ExternalService.reset_all(s) == {:error, :not_found}
      assert_received {:backend, :reset}
      assert PlainLimiter.calls() == []
      assert counts(s) == {1, 0}
    end

    test "needs neither limit", %{service: s} do
      ExternalService.start(s, circuit_breaker: [tolerate: 0])
      fail(s)
      assert ExternalService.reset_all(s) == :ok
      assert ExternalService.state(s) == :closed
    end

    test "of a service that is not started is an error", %{service: s} do
      assert ExternalService.reset_all(s) == {:error, :not_found}
    end
  end

  describe "rehearse/2" do
    test "makes the service that the options describe, and keeps it nowhere", %{service: s} do
      clock = VirtualClock.new()
      options = [clock: clock, circuit_breaker: [tolerate: 3], rate_limit: [limit: 1, per: 7], retry: [base: 9]]
      rehearsed = Lifecycle.rehearse(s, options)
      assert s not in ExternalService.services()
      ExternalService.start(s, options)
      started = ExternalService.Service.get(s)

      for key <- [:name, :watch, :melt, :retry, :schedule, :clock, :timeout],
          do: assert(Map.fetch!(rehearsed, key) == Map.fetch!(started, key))

      assert rehearsed.breaker_options[:within] == started.breaker_options[:within]
    end

    test "uses no backend of others, and takes the options that they were given", %{service: s} do
      limit = [limit: 1, per: 7, backend: Broken]
      options = [circuit_breaker: [backend: {Unresettable, tolerate: 3, report_to: self()}], rate_limit: limit]
      rehearsed = Lifecycle.rehearse(s, options)
      assert {CircuitBreaker.Local, _breaker} = rehearsed.breaker
      assert rehearsed.breaker_options[:tolerate] == 3
      assert rehearsed.rate_limit.backend == RateLimiter.Local
    end

    test "raises as start/2 does", %{service: s} do
      for options <- [[tolerate: 1], [concurrency: [limit: 1, wait: :infinity]], [circuit_breaker: [slow_rate: 0.5]]] do
        assert raised(fn -> Lifecycle.rehearse(s, options) end) == raised(fn -> ExternalService.start(s, options) end)
      end
    end
  end
end
