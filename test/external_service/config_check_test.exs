# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.ConfigCheckTest do
  # What is done about suspicious options is one setting for the whole application.
  use ExternalService.Case, async: false

  import ExternalService.Reporting
  import ExUnit.CaptureIO

  @suspicious [retry: [max_attempts: 9], circuit_breaker: [tolerate: 3]]

  # Defines a module that uses ExternalService with the options that `source` is the code of.
  defp compile(source) do
    name = "ExternalService.ConfigCheckTest.Used#{System.unique_integer([:positive])}"
    Code.compile_string("defmodule #{name} do\nuse ExternalService, #{source}\nend", "lib/used.ex")
    Module.concat([name])
  end

  describe "by default" do
    setup do: report_by_default()

    test "each finding is a warning in the log when the service is started", %{service: s} do
      log = capture_log(fn -> ExternalService.start(s, @suspicious) end)
      assert [_before, uncapped, self_tripping] = String.split(log, "[warning] ")
      assert uncapped =~ inspect(s) <> " retries with uncapped exponential backoff"
      assert self_tripping =~ inspect(s) <> " can open its breaker with a single failing call"
      assert ExternalService.available?(s)
    end

    for {what, options} <- [
          {"ends calls before they have made all their attempts",
           [timeout: 1_000, deadline: 2_000, retry: [max_attempts: 2, base: 1]]},
          {"ends calls before they have made all their attempts", [deadline: 100]},
          {"ends calls before they have made all their attempts", [deadline: 100, retry: [backoff: [50, 100]]]},
          {"ends calls before they have made all their attempts",
           [deadline: 100, retry: [backoff: quote(do: &(&1 * 50))]]},
          {"has a retry budget that nothing fills again", [retry: [budget: [ratio: 0, min_per_second: 0]]]},
          {"lets a call wait 5s with `concurrency: [wait: 5000]`",
           [deadline: 1_000, concurrency: [limit: 1, wait: 5_000]]},
          {"lets a call wait 2s with `rate_limit: [wait: 2000]`",
           [deadline: 1_000, rate_limit: [limit: 1, per: 1, wait: 2_000]]},
          {"has linear delays that grow by 100 times the base: 10ms, 1s, 2s", [retry: [backoff: :linear, factor: 100]]},
          {"has a counting window narrower than the failures it has to count",
           [circuit_breaker: [within: 100], retry: [backoff: [500]]]},
          {"has a counting window narrower than the failures it has to count",
           [circuit_breaker: [within: 100], retry: [backoff: :linear, increment: 500]]},
          {"may stay half-open for ever", [timeout: 2_000, circuit_breaker: [half_open: true, reset: 1_000]]}
        ] do
      test "starting with #{Macro.to_string(options)} is told", %{service: s} do
        log = capture_log(fn -> ExternalService.start(s, unquote(options)) end)
        assert [_before, finding] = String.split(log, "[warning] ")
        assert finding =~ "#{inspect(s)} #{unquote(what)}"
      end
    end

    for options <- [
          [timeout: 500, deadline: 3_000, fallback: {:value, 1}],
          [deadline: 1_000, concurrency: [limit: 1, wait: 1_000], rate_limit: [limit: 1, per: 1]],
          [retry: [backoff: :linear, increment: 100, budget: true]],
          [retry: [backoff: :constant, base: 500, max_attempts: 20, cap: 600], circuit_breaker: [tolerate: 40]],
          [retry: [multiplier: 1, max_attempts: 9]],
          [retry: [backoff: [5, 50, 500], jitter: :full]],
          [retry: [backoff: quote(do: &(&1 * 10)), jitter: :decorrelated, retry_after_max: 0]]
        ] do
      test "nothing is told of #{Macro.to_string(options)}", %{service: s} do
        refute capture_log(fn -> ExternalService.start(s, unquote(options)) end) =~ inspect(s)
      end
    end

    test "they are told each time that it is started", %{service: s} do
      for _ <- 1..2 do
        assert capture_log(fn -> ExternalService.start(s, @suspicious) end) =~ "uncapped"
      end
    end

    test "nothing is told of a service whose options are fine", %{service: s} do
      refute capture_log(fn -> ExternalService.start(s) end) =~ inspect(s)
    end

    test "nothing is told of one that can not be started", %{service: s} do
      options = Keyword.put(@suspicious, :rate_limit, limit: -1, per: 1)

      log = capture_log(fn -> assert_raise ValidationError, fn -> ExternalService.start(s, options) end end)
      refute log =~ inspect(s)
    end

    test "a change tells what it brings, and not again what was there", %{service: s} do
      capture_log(fn -> ExternalService.start(s, retry: [max_attempts: 9]) end)
      log = capture_log(fn -> ExternalService.reconfigure(s, circuit_breaker: [tolerate: 3]) end)
      assert log =~ "single failing call"
      refute log =~ "uncapped"
      refute capture_log(fn -> ExternalService.reconfigure(s, concurrency: [limit: 1]) end) =~ inspect(s)
    end

    test "a module is warned of by the compiler, at the line that uses it" do
      warnings = capture_io(:stderr, fn -> compile("retry: [max_attempts: 9], circuit_breaker: [tolerate: 3]") end)
      assert warnings =~ ~r/Used\d+ retries with uncapped exponential backoff/
      assert warnings =~ "single failing call"
      assert warnings =~ "lib/used.ex:2"
    end

    test "a module is named by its service" do
      warnings = capture_io(:stderr, fn -> compile("name: {:mail, 1}, retry: [max_attempts: 9]") end)
      assert warnings =~ "{:mail, 1} retries"
    end

    test "a module with anonymous functions in its options is warned of, too" do
      source = "retry: [max_attempts: 9, retry_on: fn result -> result == :busy end]"
      assert capture_io(:stderr, fn -> compile(source) end) =~ "uncapped"
    end

    test "a module may use its own functions in its options" do
      source = """
      retry: [retry_on: fn result -> busy?(result) end, max_attempts: 1], fallback: &put_aside/1
      def busy?(result), do: result == :busy
      def put_aside(_error), do: :put_aside
      """

      assert capture_io(:stderr, fn -> send(self(), {:module, compile(source)}) end) == ""
      assert_received {:module, module}
      on_exit(fn -> ExternalService.stop(module) end)
      start_supervised!(module)
      assert module.call(fn -> :busy end) == :put_aside
    end

    test "a module is compiled without a word whose options are fine, or can not be read" do
      assert capture_io(:stderr, fn -> compile("retry: [max_attempts: 3]") end) == ""
      assert capture_io(:stderr, fn -> compile("retry: [max_attempts: 0]") end) == ""
      assert capture_io(:stderr, fn -> compile("colour: :red") end) == ""
    end

    test "defaults of the application count where a module is compiled", %{service: s} do
      on_exit(fn -> Application.delete_env(:external_service, :defaults) end)
      Application.put_env(:external_service, :defaults, circuit_breaker: [melt: :per_call])
      assert capture_io(:stderr, fn -> compile("circuit_breaker: [tolerate: 3]") end) == ""
      refute capture_log(fn -> ExternalService.start(s, circuit_breaker: [tolerate: 3]) end) =~ inspect(s)
    end
  end

  describe "with :raise" do
    setup do: report_by(:raise)

    test "all findings are in one ArgumentError, with a blank line between", %{service: s} do
      error = assert_raise ArgumentError, fn -> ExternalService.start(s, @suspicious) end
      assert [uncapped, self_tripping] = String.split(error.message, "\n\n")
      assert uncapped =~ "uncapped"
      assert self_tripping =~ "single failing call"
    end

    test "nothing has been started or changed", %{service: s} do
      assert_raise ArgumentError, fn -> ExternalService.start(s, @suspicious) end
      assert s not in ExternalService.services()

      ExternalService.start(s, circuit_breaker: [tolerate: 5])
      before = ExternalService.Service.get(s)
      assert_raise ArgumentError, fn -> ExternalService.start(s, @suspicious) end
      assert_raise ArgumentError, fn -> ExternalService.reconfigure(s, circuit_breaker: [tolerate: 3]) end
      assert ExternalService.Service.get(s) == before
    end

    test "options that contradict each other are told first", %{service: s} do
      options = [retry: [max_attempts: 9], circuit_breaker: [tolerate: :infinity, fault_injection: 0.5]]
      assert_raise ArgumentError, ~r/contradict/, fn -> ExternalService.start(s, options) end
    end

    test "nothing is raised where nothing is found", %{service: s} do
      assert ExternalService.start(s) == :ok
    end

    test "a module is not compiled" do
      assert_raise ArgumentError, ~r/uncapped/, fn -> compile("retry: [max_attempts: 9]") end
      assert compile("retry: [max_attempts: 3]")
    end
  end

  describe "with :ignore" do
    setup do: report_by(:ignore)

    test "nothing is told", %{service: s} do
      refute capture_log(fn -> ExternalService.start(s, @suspicious) end) =~ inspect(s)
      assert capture_io(:stderr, fn -> compile("retry: [max_attempts: 9]") end) == ""
    end
  end

  describe "with any other value" do
    setup do: report_by(:wran)

    test "starting a service raises and says what is allowed", %{service: s} do
      error = assert_raise ArgumentError, fn -> ExternalService.start(s) end
      assert error.message =~ "on_suspicious_config"
      assert error.message =~ "[:warn, :raise, :ignore], got: :wran"
      assert s not in ExternalService.services()
    end

    test "so does compiling a module" do
      assert_raise ArgumentError, ~r/on_suspicious_config/, fn -> compile("retry: [max_attempts: 3]") end
    end
  end
end
