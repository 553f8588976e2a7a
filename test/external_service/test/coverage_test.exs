# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.Test.CoverageTest do
  # Not async: it counts the calls of every test that runs meanwhile.
  use ExternalService.Case, async: false

  alias ExternalService.{Deadline, Test.Coverage}

  setup do
    Coverage.attach()
    Coverage.reset()

    on_exit(fn ->
      Coverage.detach()
      Coverage.reset()
    end)
  end

  @none %{calls: 0, retried: 0, failed: 0, rejected: 0, throttled: 0, saturated: 0}

  defp entry(service) do
    assert [entry] = Enum.filter(Coverage.entries(), &(&1.service == service))
    entry
  end

  # What the calls were counted as, but for zeros.
  defp counted(service) do
    service |> entry() |> Map.take(Map.keys(@none)) |> Enum.reject(fn {_column, count} -> count == 0 end) |> Map.new()
  end

  test "a service that only ever succeeded is not exercised", %{service: s} do
    ExternalService.start(s)
    for _ <- 1..3, do: ExternalService.call(s, fn -> {:error, :no_failure} end)
    assert entry(s) == Map.merge(@none, %{service: s, calls: 3, exercised?: false})
  end

  test "a call that was retried is one, however often", %{service: s} do
    start_recording(s, retry: [max_attempts: 4])
    assert ExternalService.call(s, attempting_each([:retry, :retry, :retry, :fine])) == :fine
    assert counted(s) == %{calls: 1, retried: 1}
    ExternalService.call(s, fn -> :retry end)
    assert counted(s) == %{calls: 2, retried: 2, failed: 1}
    assert entry(s).exercised?
  end

  test "a call that raised has failed", %{service: s} do
    ExternalService.start(s)
    assert_raise KeyError, fn -> ExternalService.call(s, fn -> raise KeyError, key: 1 end) end
    catch_throw(ExternalService.call(s, fn -> throw(:ball) end))
    assert counted(s) == %{calls: 2, failed: 2}
  end

  test "refusals are counted by their kind, returned or raised", %{service: s} do
    ExternalService.start(s, circuit_breaker: [tolerate: 0])
    ExternalService.open(s)
    ExternalService.call(s, fn -> :fine end)
    assert_raise CircuitBreakerOpen, fn -> ExternalService.call!(s, fn -> :fine end) end
    assert counted(s) == %{calls: 2, rejected: 2}

    ExternalService.start(s, rate_limit: [limit: 0, per: 1_000, wait: false])
    ExternalService.close(s)
    ExternalService.call(s, fn -> :fine end)
    assert counted(s) == %{calls: 3, rejected: 2, throttled: 1}

    ExternalService.start(s, concurrency: [limit: 1])
    ExternalService.call(s, fn -> {:within, ExternalService.call(s, fn -> :fine end)} end)
    assert counted(s) == %{calls: 5, rejected: 2, throttled: 1, saturated: 1}
  end

  test "a call that ran out of time has failed", %{service: s} do
    ExternalService.start(s, timeout: 1, retry: [max_attempts: 1])
    ExternalService.call(s, fn -> receive(do: (:never -> :fine)) end)
    assert counted(s) == %{calls: 1, retried: 1, failed: 1}
    Deadline.with_deadline(0, fn -> ExternalService.call(s, fn -> :fine end) end)
    assert counted(s) == %{calls: 2, retried: 1, failed: 2}
  end

  test "a call that a fallback answered for is what it would have been without", %{service: s} do
    ExternalService.start(s, circuit_breaker: [tolerate: 0], fallback: {:value, :instead})
    assert fail(s) == :instead
    assert counted(s) == %{calls: 1, retried: 1, failed: 1}
    assert fail(s) == :instead
    assert counted(s) == %{calls: 2, retried: 1, failed: 1, rejected: 1}
    ExternalService.reset(s)
    raising = [retry_exceptions: [RuntimeError], max_attempts: 1]
    assert ExternalService.call(s, raising, fn -> raise "no" end) == :instead
    assert counted(s) == %{calls: 3, retried: 2, failed: 2, rejected: 1}
  end

  test "a call that waited for the rate limit was throttled", %{service: s} do
    start_recording(s, rate_limit: [limit: 1, per: 60_000, wait: :infinity])
    for _ <- 1..2, do: ExternalService.call(s, fn -> :fine end)
    assert counted(s) == %{calls: 2, throttled: 1}
  end

  test "a call of a service not started is counted as a call", %{service: s} do
    ExternalService.call(s, fn -> :fine end)
    catch_error(ExternalService.call!(s, fn -> :fine end))
    assert counted(s) == %{calls: 2}
  end

  test "what befalls a call inside another is not the outer one's", %{service: s} do
    inner = {s, :inner}
    on_exit(fn -> ExternalService.stop(inner) end)
    for name <- [s, inner], do: ExternalService.start(name)
    ExternalService.call(s, fn -> fail(inner) end)
    assert counted(s) == %{calls: 1}
    assert counted(inner) == %{calls: 1, retried: 1, failed: 1}
    catch_error(ExternalService.call(s, fn -> ExternalService.call!(inner, [max_attempts: 1], fn -> :retry end) end))
    assert counted(s) == %{calls: 2, failed: 1}
  end

  test "calls in other processes are counted", %{service: s} do
    ExternalService.start(s)
    together(20, fn _ -> fail(s) end)
    assert %{calls: 20, exercised?: true} = entry(s)
  end

  test "attach/0 and detach/0 say whether it was counting, and what was counted stays", %{service: s} do
    ExternalService.start(s)
    fail(s)
    assert Coverage.attach() == {:error, :already_exists}
    assert Coverage.detach() == :ok
    assert Coverage.detach() == {:error, :not_found}
    fail(s)
    assert entry(s).calls == 1
    assert Coverage.reset() == :ok
    assert Coverage.entries() == []
  end

  test "attached inside a call, it counts from the next one on", %{service: s} do
    ExternalService.start(s)
    Coverage.detach()
    ExternalService.call(s, fn -> Coverage.attach() end)
    assert Coverage.entries() == []
    fail(s)
    assert entry(s).calls == 1
  end

  test "report/0 is a table with a mark on services that never failed" do
    for service <- [:report_b, :report_a], do: ExternalService.start(service)
    on_exit(fn -> for service <- [:report_b, :report_a], do: ExternalService.stop(service) end)
    fail(:report_b)
    ExternalService.call(:report_a, fn -> :fine end)

    assert String.split(Coverage.report(), "\n") == [
             "ExternalService: what the tests have seen",
             "  service    calls  retried  failed  rejected  throttled  saturated",
             "! :report_a      1        0       0         0          0          0",
             "  :report_b      1        1       1         0          0          0",
             "! called, but never retried, failed or refused"
           ]

    Coverage.reset()
    fail(:report_b)
    refute Coverage.report() =~ "!"
  end

  test "report/0 without calls says so" do
    assert Coverage.report() == "ExternalService: the tests called no service"
  end

  @tag :tmp_dir
  test "install_reporter/0 prints the report when a suite is over", %{tmp_dir: folder} do
    path = Path.join(folder, "suite.exs")

    File.write!(path, """
    ExternalService.Test.Coverage.install_reporter()
    ExUnit.start()

    defmodule Suite do
      use ExUnit.Case

      test "calls" do
        ExternalService.start(:suite)
        assert ExternalService.call(:suite, fn -> :fine end) == :fine
      end
    end
    """)

    beams = Application.app_dir(:external_service, "ebin")
    {output, 0} = System.cmd("elixir", ["-pa", beams, path], stderr_to_stdout: true)
    assert output =~ ~r/(1 test, 0 failures|1 passed)(.|\n)*! :suite\s+1\s+0/
  end
end
