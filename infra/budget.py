"""A monthly budget of what this deployment spends, told by its cost-allocation tag.

AWS must first be told to sort costs by the tag: Billing, Cost allocation tags, activate `application`
(a day later costs carry it). It warns and stops nothing: what bounds a run is max_runtime_s.
"""

from aws_cdk import aws_budgets as budgets
from constructs import Construct

from infra.settings import Settings

WARN_AT_PERCENT = (80, 100)


def monthly_budget(scope: Construct, settings: Settings) -> budgets.CfnBudget:
    """Messages go to the setting notification_email, which Settings ask for beside a budget."""
    subscriber = budgets.CfnBudget.SubscriberProperty(
        address=str(settings.notification_email), subscription_type="EMAIL"
    )
    return budgets.CfnBudget(
        scope,
        "MonthlyBudget",
        budget=budgets.CfnBudget.BudgetDataProperty(
            budget_type="COST",
            time_unit="MONTHLY",
            budget_limit=budgets.CfnBudget.SpendProperty(amount=settings.monthly_budget_usd, unit="USD"),
            cost_filters={"TagKeyValue": [f"user:application${settings.prefix}"]},
        ),
        notifications_with_subscribers=[
            budgets.CfnBudget.NotificationWithSubscribersProperty(
                notification=budgets.CfnBudget.NotificationProperty(
                    comparison_operator="GREATER_THAN",
                    notification_type="ACTUAL",
                    threshold=percent,
                    threshold_type="PERCENTAGE",
                ),
                subscribers=[subscriber],
            )
            for percent in WARN_AT_PERCENT
        ],
    )
