# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.InsightsTest do
  # There is one handler for all, so nothing runs beside these.
  use ExternalService.Case, async: false

  alias ExternalService.{AttemptTimeout, Deadline, DeadlineExceeded, Insights, NoEndpoint, Options, RateLimited}
  alias ExternalService.ServiceSaturated
  alias ExternalService.Insights.Report

  doctest ExternalService.Insights

  setup do
    on_exit(&Insights.detach/0)
  end

  defp start_attached(service, options \\ [], insights \\ [log: false]) do
    start_recording(service, options)
    assert Insights.attach([services: [service]] ++ insights) == :ok
  end

  defp succeed(service), do: ExternalService.call(service, fn -> :fine end)
  defp degrade(service), do: ExternalService.call(service, [base: 0], attempting_each([:retry, :fine]))
  defp times(count, fun), do: Enum.each(1..count//1, fn _ -> fun.() end)

  defp failed_by(service, fun), do: failed_by(fn -> ExternalService.call(service, fun) end)

  defp failed_by(fun) do
    fun.()
  catch
    _kind, _reason -> :failed
  end

  # The end of a call, told as its event would tell it.
  defp ended(service, ms, config, at \\ 0) do
    native = &System.convert_time_unit(&1, :millisecond, :native)
    measurements = %{duration: native.(ms), monotonic_time: native.(at)}
    metadata = %{service: service, result: :fine}
    Insights.handle_event([:external_service, :call, :stop], measurements, metadata, config)
  end

  defp quiet(service, ms), do: ended(service, ms, %{log: false, log_every: 0})

  describe "attach/1" do
    test "counts the services that are started, and no others", %{service: s} do
      ExternalService.start(s)
      assert Insights.attach(log: false) == :ok
      ExternalService.start({s, :later})
      on_exit(fn -> ExternalService.stop({s, :later}) end)
      assert %Report{service: ^s, calls: 0, findings: []} = Insights.report(s)
      succeed({s, :later})
      assert Insights.report({s, :later}) == {:error, :not_attached}
    end

    test "counts only the services it is given, started or not yet", %{service: s} do
      ExternalService.start({s, :other})
      on_exit(fn -> ExternalService.stop({s, :other}) end)
      assert Insights.attach(services: [s], log: false) == :ok
      ExternalService.start(s)
      for name <- [s, {s, :other}], do: succeed(name)
      assert Insights.report(s).calls == 1
      assert Insights.report({s, :other}) == {:error, :not_attached}
    end

    test "a second time says so, and counts from zero", %{service: s} do
      start_attached(s)
      fail(s)
      assert Insights.attach(services: [s]) == {:error, :already_exists}
      assert %Report{calls: 0, attempts: 0, consecutive_failures: 0, worst_consecutive_failures: 0} = Insights.report(s)
      succeed(s)
      assert Insights.report(s).calls == 1
    end

    test "a second time adds services and leaves those alone that it does not name", %{service: s} do
      ExternalService.start({s, :added})
      on_exit(fn -> ExternalService.stop({s, :added}) end)
      start_attached(s)
      succeed(s)
      assert Insights.attach(services: [{s, :added}]) == {:error, :already_exists}
      succeed({s, :added})
      assert {Insights.report(s).calls, Insights.report({s, :added}).calls} == {1, 1}
    end

    test "a second time keeps the options for logging", %{service: s} do
      start_attached(s)
      assert Insights.attach(services: [s], log: true, log_every: 0) == {:error, :already_exists}
      times(25, fn -> quiet(s, 0) end)
      refute capture_log(fn -> times(25, fn -> degrade(s) end) end) =~ "Insights"
    end

    test "leaves one handler, whoever attaches at the same time", %{service: s} do
      ExternalService.start(s)
      answers = together(20, fn _ -> Insights.attach(services: [s], log: false) end)
      assert Enum.frequencies(answers) == %{:ok => 1, {:error, :already_exists} => 19}
      succeed(s)
      assert Insights.report(s).calls == 1
    end

    test "refuses options that are none, by name" do
      for {option, value} <- [services: :all, services: [1 | 2], log: 1, log: nil, log_every: -1, log_every: :never] do
        assert %ValidationError{key: ^option, value: ^value, keys_path: []} =
                 catch_error(Insights.attach([{option, value}]))
      end

      assert %ValidationError{key: [:colour]} = catch_error(Insights.attach(colour: :red))
      assert Telemetry.detach({Insights, :handler}) == {:error, :not_found}
    end

    test "takes every declared option at its boundaries", %{service: s} do
      assert Keyword.keys(Options.schema(:insights)) == [:services, :log, :log_every]

      for option <- [
            [services: []],
            [services: [s, 1, nil]],
            [log: true],
            [log_every: 0],
            [log_every: 9_223_372_036_854]
          ] do
        assert Insights.attach(option) == :ok
        assert Insights.detach() == :ok
      end
    end
  end

  describe "detach/0" do
    test "forgets the counts, those of services that were stopped too", %{service: s} do
      start_attached(s)
      succeed(s)
      ExternalService.stop(s)
      assert Insights.detach() == :ok
      assert Insights.report(s) == {:error, :not_attached}
    end

    test "of what is not attached is fine" do
      assert Insights.detach() == :ok
      assert Insights.detach() == :ok
    end

    test "leaves nothing that listens to calls", %{service: s} do
      start_attached(s)
      assert Telemetry.spans?(:all)
      Insights.detach()
      refute Telemetry.spans?(:all)
    end
  end

  describe "report/1" do
    test "is all zeros before the first call", %{service: s} do
      start_attached(s)
      assert Insights.report(s) == %Report{service: s}
    end

    test "counts calls by how they ended", %{service: s} do
      start_attached(s, circuit_breaker: [tolerate: 2])
      times(3, fn -> succeed(s) end)
      times(2, fn -> degrade(s) end)
      fail(s)
      times(4, fn -> succeed(s) end)

      assert %Report{calls: 10, succeeded: 5, failed: 1, rejected: 4, degraded: 2, attempts: 3} = Insights.report(s)
    end

    test "counts the attempts that failed, not those that succeeded", %{service: s} do
      start_attached(s)
      ExternalService.call(s, [max_attempts: 4, base: 0], fn -> :retry end)
      degrade(s)
      succeed(s)
      assert %Report{calls: 3, attempts: 5, failed: 1, degraded: 1} = Insights.report(s)
    end

    test "counts exceptions, throws and exits as failed", %{service: s} do
      start_attached(s)
      for fun <- [fn -> raise "no" end, fn -> throw(:no) end, fn -> exit(:no) end], do: failed_by(s, fun)
      assert %Report{calls: 3, failed: 3, attempts: 0, consecutive_failures: 3} = Insights.report(s)
    end

    test "counts what a limit refuses, and an error that is a result, as succeeded", %{service: s} do
      start_attached(s, rate_limit: [limit: 2, per: 60_000, wait: false], concurrency: [limit: 1])

      ExternalService.call(s, fn ->
        assert {:error, %ServiceSaturated{}} = succeed(s)
        {:error, :not_found}
      end)

      ExternalService.call(s, fn -> :fine end)
      assert {:error, %RateLimited{}} = succeed(s)
      assert %Report{calls: 4, succeeded: 4, failed: 0} = Insights.report(s)
    end

    test "counts what a service that is not started refuses as no failure", %{service: s} do
      assert Insights.attach(services: [s], log: false) == :ok
      assert {:error, %ServiceNotStarted{}} = succeed(s)
      assert %Report{calls: 1, succeeded: 1, findings: []} = Insights.report(s)
    end

    # The end of a call by this error, told as its event would tell it.
    defp ended_by(service, error) do
      measurements = %{duration: 0, monotonic_time: 0}
      metadata = %{service: service, result: {:error, error}}
      Insights.handle_event([:external_service, :call, :stop], measurements, metadata, %{log: false, log_every: 0})
    end

    test "counts a call that ran out of time as failed, and one that was skipped as no failure", %{service: s} do
      start_attached(s, timeout: 1, retry: [max_attempts: 1])
      assert {:error, %AttemptTimeout{}} = ExternalService.call(s, fn -> receive(do: (:never -> :ok)) end)
      assert %Report{failed: 1, succeeded: 0, attempts: 1} = Insights.report(s)

      late = fn -> {:retry_after, 60_000, :busy} end

      assert {:error, %DeadlineExceeded{}} =
               ExternalService.call(s, [deadline: 1_000, max_attempts: 2, retry_after_max: 60_000], late)

      assert %Report{failed: 2, succeeded: 0, attempts: 2, consecutive_failures: 2} = Insights.report(s)

      assert {:error, %DeadlineExceeded{}} = Deadline.with_deadline(0, fn -> succeed(s) end)
      assert %Report{failed: 2, succeeded: 1, consecutive_failures: 0} = Insights.report(s)
    end

    test "counts a call for which there was no endpoint as no failure", %{service: s} do
      start_attached(s)
      ended_by(s, %{__struct__: NoEndpoint, __exception__: true, context: %{service: s}})
      assert %Report{calls: 1, succeeded: 1, failed: 0} = Insights.report(s)
    end

    test "counts what a fallback answered for by what it hid", %{service: s} do
      start_attached(s, circuit_breaker: [tolerate: 1], fallback: fn _error -> :instead end)
      for _ <- 1..2, do: assert(fail(s) == :instead)
      assert %Report{calls: 2, failed: 2, attempts: 2, consecutive_failures: 2} = Insights.report(s)
      assert succeed(s) == :instead
      assert %Report{calls: 3, failed: 2, rejected: 1, consecutive_failures: 0} = Insights.report(s)
      ExternalService.reset(s)
      assert succeed(s) == :fine
      assert Deadline.with_deadline(0, fn -> succeed(s) end) == :instead
      assert %Report{calls: 5, succeeded: 2, failed: 2, rejected: 1, degraded: 0} = Insights.report(s)
    end

    test "counts exceptions that a fallback answered for, and fallbacks that fail, as failed", %{service: s} do
      start_attached(s, retry: [max_attempts: 1, retry_exceptions: [RuntimeError]], fallback: fn _error -> :instead end)
      assert ExternalService.call(s, fn -> raise "no" end) == :instead
      failing = [fallback: fn _error -> exit(:no) end]
      assert failed_by(fn -> ExternalService.call(s, failing, fn -> :retry end) end) == :failed
      assert %Report{calls: 2, failed: 2} = Insights.report(s)
    end

    test "counts a service that is not started as no failure where a fallback answered, too", %{service: s} do
      assert Insights.attach(services: [s], log: false) == :ok
      assert ExternalService.call(s, [fallback: {:value, :instead}], fn -> :fine end) == :instead
      assert %Report{calls: 1, succeeded: 1} = Insights.report(s)
    end

    test "makes no difference between call and call!", %{service: s} do
      for call <- [&ExternalService.call/3, &ExternalService.call!/3] do
        start_attached(s, circuit_breaker: [tolerate: 0], rate_limit: [limit: 1, per: 60_000, wait: false])
        for result <- [:retry, :refused], do: failed_by(fn -> call.(s, [max_attempts: 1], fn -> result end) end)
        ExternalService.reset(s)
        failed_by(fn -> call.(s, [], fn -> :limited end) end)
        assert %Report{calls: 3, failed: 1, rejected: 1, succeeded: 1} = Insights.report(s)
        Insights.detach()
      end
    end

    test "takes the error of another service for a result", %{service: s} do
      start_attached(s)

      for error <- [%RetriesExhausted{context: %{service: :other}}, %CircuitBreakerOpen{context: %{service: :other}}],
          do: ExternalService.call(s, fn -> {:error, error} end)

      assert %Report{calls: 2, succeeded: 2} = Insights.report(s)
      failed_by(s, fn -> raise CircuitBreakerOpen, context: %{service: :other} end)
      assert %Report{calls: 3, failed: 1, rejected: 0} = Insights.report(s)
    end

    test "counts failures in a row, until a success or a refusal of the breaker", %{service: s} do
      start_attached(s, circuit_breaker: [tolerate: 3])
      times(3, fn -> fail(s) end)
      assert %Report{consecutive_failures: 3, worst_consecutive_failures: 3} = Insights.report(s)
      succeed(s)
      assert %Report{consecutive_failures: 0, worst_consecutive_failures: 3} = Insights.report(s)
      fail(s)
      assert %Report{consecutive_failures: 1, worst_consecutive_failures: 3} = Insights.report(s)
      assert {:error, %CircuitBreakerOpen{}} = fail(s)
      assert %Report{consecutive_failures: 0, worst_consecutive_failures: 3} = Insights.report(s)
    end

    test "gives mean and worst in milliseconds, without the calls that the breaker refused", %{service: s} do
      start_attached(s, circuit_breaker: [tolerate: 0])
      for ms <- [10, 40, 25], do: quiet(s, ms)
      assert %Report{mean_call: 25.0, worst_call: 40.0} = Insights.report(s)
      ExternalService.open(s)
      times(100, fn -> succeed(s) end)
      assert %Report{rejected: 100, mean_call: 25.0, worst_call: 40.0} = Insights.report(s)
    end

    test "counts a call as degraded by the retries of its own service and process only", %{service: s} do
      other = {s, :other}
      ExternalService.start(other)
      on_exit(fn -> ExternalService.stop(other) end)
      start_attached(s)
      Insights.attach(services: [other])

      fun = fn -> fail(other) && Task.await(Task.async(fn -> degrade(s) end)) end
      ExternalService.call(s, fun)
      assert %Report{calls: 2, degraded: 1} = Insights.report(s)
      assert %Report{failed: 1, degraded: 0} = Insights.report(other)
    end

    test "is not misled by a retry from before it was attached afresh", %{service: s} do
      start_attached(s)

      ExternalService.call(
        s,
        [base: 0],
        attempting_each([:retry, fn -> Insights.detach() && Insights.attach(services: [s], log: false) && :fine end])
      )

      assert %Report{calls: 1, succeeded: 1, degraded: 0} = Insights.report(s)
    end

    test "leaves nothing in the process that calls", %{service: s} do
      start_attached(s)
      before = Process.get_keys()
      degrade(s)
      fail(s)
      failed_by(s, fn -> raise "no" end)
      ExternalService.reconfigure(s, telemetry: :changes, fallback: {:value, 1})
      fail(s)
      assert Process.get_keys() -- before == []
      ExternalService.reconfigure(s, telemetry: :all)
      succeed(s)
      assert %Report{calls: 4, attempts: 3, degraded: 1} = Insights.report(s)
      fail(s)
      failed_by(fn -> ExternalService.call(s, [fallback: fn _error -> raise "no" end], fn -> :retry end) end)
      assert Process.get_keys() -- before == []
    end

    test "has every call of many processes", %{service: s} do
      start_attached(s, circuit_breaker: [tolerate: :infinity])

      together(20, fn n ->
        for _ <- 1..200, do: if(rem(n, 2) == 0, do: succeed(s), else: fail(s))
      end)

      assert %Report{calls: 4000, succeeded: 2000, failed: 2000, attempts: 2000} = Insights.report(s)
    end

    test "has the longest row of failures of many processes", %{service: s} do
      start_attached(s, circuit_breaker: [tolerate: :infinity])
      together(20, fn _ -> times(50, fn -> fail(s) end) end)
      assert %Report{consecutive_failures: 1000, worst_consecutive_failures: 1000} = Insights.report(s)
    end
  end

  describe "what is found" do
    @inert [circuit_breaker: [tolerate: 1, within: 1_000]]
    @hour System.convert_time_unit(3_600_000, :millisecond, :native)

    # Attaches without logging and makes so many degraded calls that it has something to say for the next 200; those are told by hand.
    defp start_degraded(service) do
      start_attached(service, circuit_breaker: [tolerate: :infinity])
      times(60, fn -> degrade(service) end)
    end

    defp said_at(service, ms, times \\ 25) do
      log = capture_log(fn -> times(times, fn -> ended(service, 0, %{log: true, log_every: @hour}, ms) end) end)
      length(Regex.scan(~r/\[warning\].*\[ExternalService.Insights\] /, log))
    end

    test "is in the report", %{service: s} do
      start_degraded(s)
      assert [%{check: :degraded_but_succeeding, message: message}] = Insights.report(s).findings
      assert String.starts_with?(message, inspect(s) <> ": ")
    end

    test "is logged as a warning after the call that shows it", %{service: s} do
      clock = start_on_clock(s, @inert)
      assert Insights.attach(services: [s]) == :ok
      assert capture_log(fn -> fail(s) end) == ""
      VirtualClock.advance(clock, 2_000)
      log = capture_log(fn -> fail(s) end)
      [%{check: :inert_breaker, message: message}] = Insights.report(s).findings
      assert log =~ "[warning] [ExternalService.Insights] " <> message
    end

    test "is logged after 25 calls where calls succeed", %{service: s} do
      start_degraded(s)
      assert said_at(s, 0, 24) == 0
      assert said_at(s, 0, 1) == 1
    end

    test "is logged once in the time for each service", %{service: s} do
      start_degraded(s)
      assert said_at(s, 0) == 1
      assert said_at(s, 3_599_999, 100) == 0
      assert said_at(s, 3_600_000, 50) == 1

      other = {s, :other}
      start_recording(other, circuit_breaker: [tolerate: :infinity])
      on_exit(fn -> ExternalService.stop(other) end)
      Insights.attach(services: [other])
      times(20, fn -> degrade(other) end)
      assert said_at(other, 3_600_000) == 1
    end

    test "is logged once by many processes that find it together", %{service: s} do
      clock = start_on_clock(s, @inert)
      assert Insights.attach(services: [s]) == :ok
      raise_in = fn _ -> failed_by(s, fn -> raise "not one to retry" end) end
      log = capture_log(fn -> together(20, raise_in) end)
      assert length(Regex.scan(~r/\[ExternalService.Insights\]/, log)) == 1
      assert VirtualClock.now(clock) == 0
    end

    test "is not logged without :log", %{service: s} do
      clock = start_on_clock(s, @inert)
      assert Insights.attach(services: [s], log: false) == :ok
      log = capture_log(fn -> times(5, fn -> fail(s) && VirtualClock.advance(clock, 2_000) end) end)
      assert log == ""
      assert [%{check: :inert_breaker}] = Insights.report(s).findings
    end
  end

  describe "the events of a library called :telemetry" do
    test "are counted where it is loaded, and its handler goes with detach/0", %{service: s} do
      create_telemetry()

      on_exit(fn ->
        :code.delete(:telemetry)
        :code.purge(:telemetry)
      end)

      start_attached(s)
      degrade(s)
      assert %Report{calls: 1, degraded: 1} = Insights.report(s)
      assert Insights.attach(services: [s]) == {:error, :already_exists}
      assert Insights.detach() == :ok
      assert Telemetry.detach({Insights, :handler}) == {:error, :not_found}
    end
  end

  # The part of :telemetry that is used, on this library's own handlers.
  defp create_telemetry do
    body =
      quote do
        defdelegate attach_many(id, events, handler, config), to: ExternalService.Telemetry.Handlers, as: :attach
        defdelegate execute(event, measurements, metadata), to: ExternalService.Telemetry.Handlers
        defdelegate detach(id), to: ExternalService.Telemetry.Handlers
      end

    Module.create(:telemetry, body, Macro.Env.location(__ENV__))
  end
end
