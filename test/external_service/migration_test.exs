# SPDX-License-Identifier: Apache-2.0

defmodule ExternalService.MigrationTest do
  use ExUnit.Case, async: true

  alias ExternalService.Migration

  # The places of the source, in a file that is about this library.
  defp places(source) do
    {:ok, places} = Migration.places("# ExternalService\n" <> source)
    for %{line: line, found: found, today: today} <- places, do: {line - 1, found, today}
  end

  # What to write in place of the one thing that is found.
  defp today(source) do
    assert [{1, _found, today}] = places(source)
    today
  end

  describe "options" do
    test "of start are found in a call and in an attribute" do
      for source <- [
            "ExternalService.start(:x, fuse_strategy: {:standard, 5, 1_000}, fuse_refresh: 5_000)",
            "@options [fuse_strategy: {:standard, 5, 1_000}, fuse_refresh: 5_000]",
            "[fuse_strategy: {:standard, 5, 1_000}, other: 1, fuse_refresh: 5_000]",
            "[{:fuse_strategy, {:standard, 5, 1_000}}, {:fuse_refresh, 5_000}]"
          ] do
        assert today(source) == "circuit_breaker: [tolerate: 5, within: 1_000, reset: 5_000]"
      end
    end

    test "keep the code of their values" do
      assert today("[rate_limit: {@limit, :timer.seconds(1)}]") ==
               "rate_limit: [limit: @limit, per: :timer.seconds(1), wait: :infinity]"
    end

    test "whose values are elsewhere are stood in for" do
      assert today("[fuse_strategy: strategy()]") == "circuit_breaker: [tolerate: failures, within: ms]"
      assert today("[fuse: @fuse]") == "circuit_breaker: [tolerate: failures, within: ms, reset: ms]"
    end

    test "of a retry are found in a list and in a struct" do
      assert today("[backoff: {:linear, 100, 1}]") == "backoff: :linear, base: 100, increment: 1"
      assert today("%RetryOptions{backoff: {:exponential, 50}}") == "backoff: :exponential, base: 50"
      assert today("%RetryOptions{rescue_only: [HTTPoison.Error]}") == "retry_exceptions: [HTTPoison.Error]"
      assert today("%RetryOptions{randomize: true}") == "jitter: true"
    end

    test "are found at every depth, each on its own line" do
      source = """
      use ExternalService.Gateway,
        fuse: [
          name: Mail,
          strategy: {:standard, 5, 1_000}
        ],
        rate_limit: {5, 1_000},
        retry: [
          expiry: 5_000,
          backoff: {:exponential, 50}
        ]
      """

      assert places(source) == [
               {1, "use ExternalService.Gateway", "use ExternalService"},
               {2, "fuse: [name: Mail, strategy: {:standard, 5, 1_000}]",
                "name: Mail, circuit_breaker: [tolerate: 5, within: 1_000]"},
               {6, "rate_limit: {5, 1_000}", "rate_limit: [limit: 5, per: 1_000, wait: :infinity]"},
               {9, "backoff: {:exponential, 50}", "backoff: :exponential, base: 50"}
             ]
    end
  end

  describe "functions" do
    test "of a gateway are found where they are called and where they are captured" do
      for {old, today} <- [
            {"external_call", "call"},
            {"external_call!", "call!"},
            {"external_call_async", "call_async"},
            {"external_call_async_stream", "call_async_stream"},
            {"reset_fuse", "reset"}
          ] do
        assert places("#{old}(1)") == [{1, old, today}]
        assert places("Mail.#{old}(1)") == [{1, "Mail.#{old}", "Mail.#{today}"}]
        assert places("&#{old}/1") == [{1, old, today}]
        assert places("&Mail.#{old}/1") == [{1, "Mail.#{old}", "Mail.#{today}"}]
      end
    end

    test "that decorate are today's" do
      assert places("@decorate external_call(:mail)\ndef deliver(mail), do: mail") == []
    end
  end

  describe "errors" do
    test "are found as patterns, and show the struct" do
      assert today("case x do {:error, {:fuse_blown, name}} -> name end") ==
               "{:error, %ExternalService.CircuitBreakerOpen{context: %{service: name}}}"

      assert today("{:error, {:retries_exhausted, :busy}} = x") ==
               "{:error, %ExternalService.RetriesExhausted{context: %{reason: :busy}}}"

      assert today("{:error, {:fuse_not_found, _}} = x") == "{:error, %ExternalService.ServiceNotStarted{}}"
      assert today("{:error, {:fuse_blown, _name}} = x") == "{:error, %ExternalService.CircuitBreakerOpen{}}"
    end

    test "of other kinds are not" do
      assert places("{:error, {:closed, name}} = x; {:ok, {:fuse_blown, 1}} = x; {1, 2}") == []
    end

    test "that were raised are found under any alias" do
      assert today("rescue_it(ExternalService.FuseBlownError)") == "ExternalService.CircuitBreakerOpen"
      assert today("rescue_it(RetriesExhaustedError)") == "ExternalService.RetriesExhausted"
      assert today("rescue_it(__MODULE__.FuseNotFoundError)") == "ExternalService.ServiceNotStarted"
    end
  end

  test "today's code has nothing to change" do
    source = """
    use ExternalService, circuit_breaker: [tolerate: 5], rate_limit: [limit: 5, per: 1_000], retry: [backoff: :linear]
    def deliver(mail), do: call([max_attempts: 1, backoff: :exponential], fn -> {:retry, mail} end)
    %ExternalService.RetryOptions{backoff: :linear, factor: 2}
    %{"a" => 1, b: 2}
    """

    assert places(source) == []
  end

  test "files that are about something else are left alone" do
    assert Migration.places("%{backoff: {:exponential, 50}, rate_limit: {1, 2}}") == {:ok, []}
    assert {:ok, [%{line: 1}]} = Migration.places("config :my_app, fuse_refresh: 5_000")
  end

  test "a source that is no Elixir is an error with its line" do
    assert {:error, "line 2: " <> _why} = Migration.places("ExternalService\n)")
    assert {:error, "line " <> _rest} = Migration.places("ExternalService.start(")
  end
end
