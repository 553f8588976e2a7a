# What the library's operations cost: `make bench`, or
#
#     mix run bench/run.exs
#
# G is one GenServer.call round trip to an idle server, F is a call of the function itself. Both are measured in the same
# run as everything else, and ratios and budgets are multiples of G: times depend on the machine, ratios hardly.

Code.require_file("support.exs", __DIR__)

# Some of what is measured is no sensible service.
Application.put_env(:external_service, :on_suspicious_config, :ignore)

defmodule Bench.IdleServer do
  use GenServer

  @impl true
  def init(nil), do: {:ok, nil}

  @impl true
  def handle_call(:ping, _from, nil), do: {:reply, :pong, nil}
end

defmodule Bench.Loops do
  import Bench, only: [loop: 2]

  alias ExternalService.{CircuitBreaker, Concurrency, Native}

  loop(round_trip(server), do: GenServer.call(server, :ping))
  loop(direct(fun), do: fun.())

  loop(available(service), do: ExternalService.available?(service))
  loop(admit(breaker), do: Native.breaker_admit(breaker))
  loop(call(service), do: ExternalService.call(service, fn -> :fine end))
  loop(call_with_override(service), do: ExternalService.call(service, [max_attempts: 2], fn -> :fine end))
  loop(fail_once(service), do: ExternalService.call(service, &fail_every_other_time/0))
  loop(give_up(service), do: ExternalService.call(service, fn -> :retry end))
  loop(melt(service), do: CircuitBreaker.melt(service))
  loop(succeed(breaker), do: Native.breaker_report(breaker, 0, :success, 0))
  loop(reserve(limiter), do: Native.limiter_reserve(limiter, 1, 0))

  loop(deposit(budget), do: Native.budget_deposit(budget))
  loop(withdraw(budget), do: Native.budget_withdraw(budget))
  loop(pick({table, key}), do: Native.balancer_pick(table, key, []))
  loop(routed_call(service), do: ExternalService.call(service, fn endpoint -> endpoint end))

  loop(bounded_call(service), do: ExternalService.call(service, [deadline: 60_000], fn -> :fine end))

  loop inherited_deadline(service) do
    ExternalService.Deadline.with_deadline(60_000, fn -> ExternalService.call(service, fn -> :fine end) end)
  end

  loop enter_and_leave(concurrency) do
    {:ok, holder} = Concurrency.enter(concurrency)
    Concurrency.leave(concurrency, holder)
  end

  loop(next_delay(schedule), do: Native.backoff_next(schedule, 3, 0, 0, :infinity, nil))

  # The breaker tolerates ten, so it never opens.
  loop melt_ten_and_reset(service) do
    melt(10, service)
    CircuitBreaker.reset(service)
  end

  loop(simulate(options), do: ExternalService.simulate(options, :always_failing, max_attempts: 1_000))

  # Jumps from service to service, so that hardly one is still in the cache.
  def melt_anywhere(0, _services), do: :ok

  def melt_anywhere(n, services) do
    CircuitBreaker.melt(elem(services, rem(n * 7_919, tuple_size(services))))
    melt_anywhere(n - 1, services)
  end

  def fine, do: :fine

  defp fail_every_other_time do
    if Process.put(:failed, not Process.get(:failed, false)), do: :fine, else: :retry
  end
end

defmodule Bench.Run do
  alias Bench.{IdleServer, Loops, Row}
  alias ExternalService.{CircuitBreaker, Concurrency, Native, RateLimiter}

  @many_services 100_000
  @hour 3_600_000
  # Failures leave this window before there are enough of them to open the breaker, and it is closed throughout.
  @wide [tolerate: 1_000_000, within: 20, reset: @hour]
  # Exponential from 10 ms, capped at 2 s, five attempts, a tenth of jitter.
  @schedule {:exponential, 10_000_000, 0, 2_000_000, {}, 2_000_000_000, :infinity, 5, 100_000, 30_000_000_000}

  @simulated [circuit_breaker: @wide]

  # Loops that only read, and so have to be faster with two processes; the others must not be slower.
  @scaling [&Loops.admit/2, &Loops.call/2]

  def run do
    IO.puts("OTP #{System.otp_release()}, Elixir #{System.version()}, #{System.schedulers_online()} schedulers\n")
    {:ok, server} = GenServer.start_link(IdleServer, nil)

    start_services()
    {:ok, breaker} = CircuitBreaker.Local.install(:bench, tolerate: 10, within: @hour, reset: @hour)
    pairs = pairs(breaker)
    rows = measure(baselines(server) ++ calls() ++ failures() ++ parts(breaker) ++ picks() ++ pairs)
    Enum.each(pairs, &report_pair(&1, rows))

    many = start_many_services()
    IO.puts("\nWith #{@many_services} services more:\n")
    measure(baselines(server) ++ with_many_services(many))
  end

  defp measure(rows) do
    rows = Bench.measure(rows)
    Bench.report(rows)
    rows
  end

  defp report_pair(%{loop: loop, argument: argument, name: name}, rows) do
    [one, two] = Enum.filter(rows, &(&1.loop == loop and &1.argument == argument))
    gain = Bench.gain(one, two)
    least = if loop in @scaling, do: 1.7, else: 1.0
    verdict = if gain < least, do: "OVER BUDGET", else: "ok"
    Bench.line(name <> ": times what one gets done", "", Bench.decimals(gain, 2), Bench.decimals(least, 1), verdict)
  end

  defp start_services do
    start(:changes, telemetry: :changes)
    start(:all, telemetry: :all)
    start(:wide, circuit_breaker: @wide, retry: [base: 0], telemetry: :changes)
    start(:single, circuit_breaker: @wide, retry: [max_attempts: 1], telemetry: :changes)
    start(:narrow, circuit_breaker: [tolerate: 10, within: @hour, reset: @hour])
    start(:timed, timeout: 60_000, telemetry: :changes)
    start(:covered, fallback: {:value, :instead}, telemetry: :changes)
    start(:replicas, endpoints: Enum.to_list(1..10), telemetry: :changes)
    start(:busy, endpoints: Enum.to_list(1..10), balancer: :least_busy, telemetry: :changes)
    start(:tenants, telemetry: :changes)
    CircuitBreaker.melt({:tenants, :melted})
    start(:open, circuit_breaker: [tolerate: 0, within: @hour, reset: @hour], telemetry: :changes)
    CircuitBreaker.melt(:open)
  end

  # Each is melted too rarely to open.
  defp start_many_services do
    names = for number <- 1..@many_services, do: {:many, number}
    Enum.each(names, &start(&1, circuit_breaker: [tolerate: 10, within: 1, reset: @hour]))
    List.to_tuple(names)
  end

  defp slots, do: Concurrency.reconfigure(nil, :bench, [limit: 1_000, wait: false, queue: 0], nil)

  defp start(name, options), do: :ok = ExternalService.start(name, options)

  defp baselines(server) do
    [
      %Row{name: "G: GenServer.call to an idle server", loop: &Loops.round_trip/2, argument: server},
      %Row{name: "F: the function itself", loop: &Loops.direct/2, argument: &Loops.fine/0}
    ]
  end

  defp calls do
    [
      row("available?/1, closed", &Loops.available/2, :changes, 0.06),
      row("call/2, telemetry: :changes", &Loops.call/2, :changes, 0.12),
      row("call/2, telemetry: :all, no handler", &Loops.call/2, :all, 0.35),
      row("call/3 with a keyword override", &Loops.call_with_override/2, :changes, 0.5),
      row("call/2 with a fallback that is not needed", &Loops.call/2, :covered, nil),
      row("call/2 under a deadline set around it", &Loops.inherited_deadline/2, :changes, nil),
      row("call/2 with a timeout: a process for the attempt", &Loops.call/2, :timed, 4.0),
      row("call/3 with a deadline: likewise", &Loops.bounded_call/2, :changes, nil),
      row("call/2 of a service with 10 endpoints", &Loops.routed_call/2, :replicas, nil),
      row("the same, least_busy", &Loops.routed_call/2, :busy, nil),
      row("call/2 of an instance", &Loops.call/2, {:tenants, :melted}, nil),
      row("call/2 of an instance without a failure", &Loops.call/2, {:tenants, :fine}, nil),
      row("available?/1 of an instance", &Loops.available/2, {:tenants, :melted}, nil)
    ]
  end

  defp failures do
    [
      row("call/2, refused: breaker open", &Loops.call/2, :open, 0.3),
      row("call/2, fails once, retried without a wait", &Loops.fail_once/2, :wide, 0.25),
      row("call/2, one attempt, RetriesExhausted", &Loops.give_up/2, :single, 0.4),
      row("melt/1, tolerate 1_000_000", &Loops.melt/2, :wide, 0.08),
      %{row("melt/1, tolerate 10 (and 1/10 reset/1)", &Loops.melt_ten_and_reset/2, :narrow, 0.08) | operations: 10},
      row("melt/1, open", &Loops.melt/2, :open, 0.08)
    ]
  end

  defp parts(breaker) do
    {:ok, rated} = CircuitBreaker.Local.install(:bench, failure_rate: 1.0, min_calls: 1_000_000, within: @hour)
    budget = Native.budget_new({200_000, 1_000_000}, nil)
    {:ok, limiter} = RateLimiter.Local.init(:bench, limit: 1_000_000_000, per: 1_000)

    [
      row("report a success into a rate window", &Loops.succeed/2, rated, 0.08),
      row("rate limit: reserve", &Loops.reserve/2, limiter, 0.06),
      row("concurrency limit: enter and leave", &Loops.enter_and_leave/2, slots(), 0.1),
      row("admit, closed breaker, by handle", &Loops.admit/2, breaker, 0.06),
      row("next delay", &Loops.next_delay/2, @schedule, 0.06),
      row("retry budget: a success pays in, full", &Loops.deposit/2, budget, nil),
      row("retry budget: a retry takes out", &Loops.withdraw/2, budget, nil),
      %{row("an attempt that simulate/3 makes", &Loops.simulate/2, @simulated, 1.2) | operations: 1_000}
    ]
  end

  defp picks do
    for {rule, key} <- [round_robin: 0, random: 0, least_busy: 0, hash: 7],
        {count, budget} <- [{10, 0.15}, {1_000, 0.2}] do
      members = for n <- 1..count, do: {Native.endpoint_new(), (n * 0x9E3779B97F4A7C15) |> rem(0x10000000000000000), 1}
      table = Native.balancer_new(rule, members, 500_000, nil)
      row("pick one of #{count}, #{rule}", &Loops.pick/2, {table, key}, budget)
    end
  end

  defp pairs(breaker) do
    [
      two_processes("admit", &Loops.admit/2, breaker),
      two_processes("call/2", &Loops.call/2, :changes),
      two_processes("call/2 refused", &Loops.call/2, :open),
      two_processes("melt/1", &Loops.melt/2, :wide)
    ]
  end

  defp with_many_services(many) do
    [
      row("melt/1, one service, tolerate 1_000_000", &Loops.melt/2, :wide, 0.08),
      row("melt/1, each time another service", &Loops.melt_anywhere/2, many, nil),
      row("call/2, telemetry: :changes", &Loops.call/2, :changes, 0.12)
    ]
  end

  defp row(name, loop, argument, budget), do: %Row{name: name, loop: loop, argument: argument, budget: budget}

  defp two_processes(name, loop, argument),
    do: %Row{name: name <> ", two processes", loop: loop, argument: argument, processes: 2}
end

Bench.Run.run()
